"""What the client asks: from an API's path, headers and body to an `InferenceRequest`, and errors in its own shape."""
