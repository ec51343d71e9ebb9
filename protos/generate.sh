#!/bin/sh
# Makes the Python of our .proto files, beside the code that uses it. Needs: pip install -e '.[dev]'
set -e
cd "$(dirname "$0")/.."
${PYTHON:-python3} -m grpc_tools.protoc -I protos --python_out=. --grpc_python_out=. --pyi_out=. protos/picker/debug/v1/debug.proto \
  protos/picker/scaling/keda/externalscaler.proto
