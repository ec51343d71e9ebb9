#!/bin/sh
# Validators of the custom resources in deploy/, generated from the CRDs of Gateway API, Istio, KEDA, Prometheus Operator
# and GKE (npm @kubernetes-models, MIT; the CRDs are Apache-2.0), for tests/deploy/test_real_schemas.py:
#
#     tests/fetch_schemas.sh ~/schemas && PICKER_SCHEMAS=~/schemas pytest tests/deploy/test_real_schemas.py
#
# Needs npm and node.
set -eu
folder=${1:?usage: $0 FOLDER}
mkdir -p "$folder"
[ -f "$folder/complete" ] && exit
npm install --silent --no-audit --no-fund --ignore-scripts --prefix "$folder" \
    @kubernetes-models/gateway-api@2.0.0 @kubernetes-models/istio@3.0.1 @kubernetes-models/keda@2.0.0 \
    @kubernetes-models/prometheus-operator@6.0.0 @kubernetes-models/gke@4.6.2 >/dev/null
touch "$folder/complete"
