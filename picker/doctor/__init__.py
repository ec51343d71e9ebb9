"""What is wrong between Envoy and the picker, what it causes and how it is mended."""
