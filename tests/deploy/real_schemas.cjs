// Custom resources against the validators that @kubernetes-models generates from each project's own CRDs.
// Standard input: a JSON array of objects. Output: a JSON array, for each one its faults, or null for an unknown kind.
const path = require("path");
const modules = path.join(path.resolve(process.argv[2]), "node_modules", "@kubernetes-models");
const SCHEMAS = {
  "gateway.networking.k8s.io/v1 Gateway": "gateway-api/_schemas/IoK8sSigsGatewayApiApisV1Gateway",
  "gateway.networking.k8s.io/v1 HTTPRoute": "gateway-api/_schemas/IoK8sSigsGatewayApiApisV1HTTPRoute",
  "networking.istio.io/v1 DestinationRule": "istio/_schemas/NetworkingIstioIoV1DestinationRule",
  "keda.sh/v1alpha1 ScaledObject": "keda/_schemas/ComGithubKedacoreKedaV2ApisKedaV1alpha1ScaledObject",
  "monitoring.coreos.com/v1 ServiceMonitor":
    "prometheus-operator/_schemas/ComGithubPrometheusOperatorPrometheusOperatorPkgApisMonitoringV1ServiceMonitor",
  "networking.gke.io/v1 GCPBackendPolicy": "gke/_schemas/NetworkingGkeIoV1GCPBackendPolicy",
  "networking.gke.io/v1 HealthCheckPolicy": "gke/_schemas/NetworkingGkeIoV1HealthCheckPolicy",
};

function faults(object) {
  const schema = SCHEMAS[`${object.apiVersion} ${object.kind}`];
  if (!schema) return null;
  const { validate } = require(path.join(modules, schema));
  return validate(object) ? [] : validate.errors.map((error) => `${error.instancePath} ${error.message}`);
}

const objects = JSON.parse(require("fs").readFileSync(0, "utf8"));
process.stdout.write(JSON.stringify(objects.map(faults)));
