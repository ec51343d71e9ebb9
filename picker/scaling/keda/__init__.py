"""Made by protos/generate.sh."""
