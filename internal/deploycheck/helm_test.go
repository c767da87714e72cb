package deploycheck

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	"helm.sh/helm/v3/pkg/lint"
	"helm.sh/helm/v3/pkg/lint/support"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"sigs.k8s.io/yaml"
)

var chartFolder = filepath.Join(deploy, "helm", "waybill")

// values are the least that the chart requires.
const values = `
image: {repository: registry.example.com/waybill}
store: {secretName: shop-db}
sink: {secretName: shop-bus}
http: {token: {secretName: shop-waybill}, tls: {secretName: shop-waybill-tls}}
`

// allValues use every part of the chart.
const allValues = values + `
nameOverride: outbox
replicas: 3
relayName: shop
migrate: {secretName: shop-db-owner, secretKey: dsn}
config: {relay: {workers: 8}, metrics: {interval: 5s}}
env: [{name: WAYBILL_LOG_LEVEL, value: debug}]
serviceMonitor: {enabled: true, labels: {team: shop}}
serviceAccount: {annotations: {example.com/role: outbox}}
podAnnotations: {example.com/note: one}
podLabels: {team: shop}
nodeSelector: {kubernetes.io/os: linux}
tolerations: [{key: shop, operator: Exists}]
priorityClassName: high
`

// manifests are the objects of a rendered chart, read as Kubernetes reads them
// with strict validation.
type manifests struct {
	deployment appsv1.Deployment
	job        *batchv1.Job
	budget     *policyv1.PodDisruptionBudget
	service    corev1.Service
	account    corev1.ServiceAccount
	config     corev1.ConfigMap
	monitor    map[string]any
}

// render renders the chart.
func render(t *testing.T, text string) (map[string]string, error) {
	t.Helper()
	chart, err := loader.Load(chartFolder)
	if err != nil {
		t.Fatal(err)
	}
	given, err := chartutil.ReadValues([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	all, err := chartutil.ToRenderValues(chart, given, chartutil.ReleaseOptions{Name: "shop", Namespace: "shop", IsInstall: true}, nil)
	if err != nil {
		return nil, err
	}
	return engine.Render(chart, all)
}

// rendered renders the chart and decodes its objects. An unknown field is an
// error.
func rendered(t *testing.T, text string) manifests {
	t.Helper()
	files, err := render(t, text)
	if err != nil {
		t.Fatal(err)
	}
	var m manifests
	for _, name := range slices.Sorted(maps.Keys(files)) {
		content := strings.TrimSpace(files[name])
		var into any
		switch {
		case content == "" || strings.HasSuffix(name, "NOTES.txt"):
			continue
		case strings.HasSuffix(name, "/deployment.yaml"):
			into = &m.deployment
		case strings.HasSuffix(name, "/migrate.yaml"):
			m.job = &batchv1.Job{}
			into = m.job
		case strings.HasSuffix(name, "/poddisruptionbudget.yaml"):
			m.budget = &policyv1.PodDisruptionBudget{}
			into = m.budget
		case strings.HasSuffix(name, "/service.yaml"):
			into = &m.service
		case strings.HasSuffix(name, "/serviceaccount.yaml"):
			into = &m.account
		case strings.HasSuffix(name, "/configmap.yaml"):
			into = &m.config
		case strings.HasSuffix(name, "/servicemonitor.yaml"):
			into = &m.monitor
		default:
			t.Errorf("%s is not checked", name)
			continue
		}
		if err := yaml.UnmarshalStrict([]byte(content), into); err != nil {
			t.Errorf("%s: %v\n%s", name, err, content)
		}
	}
	return m
}

// TestHelmLint: the linter of Helm has nothing to say.
func TestHelmLint(t *testing.T) {
	for _, text := range []string{values, allValues} {
		given, err := chartutil.ReadValues([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		for _, message := range lint.AllWithKubeVersion(chartFolder, given, "shop", nil).Messages {
			if message.Severity > support.InfoSev {
				t.Error(message)
			}
		}
	}
}

// TestHelmRequires: a chart without one of the references is refused, and the
// error names the value.
func TestHelmRequires(t *testing.T) {
	for _, name := range []string{"image.repository", "store.secretName", "sink.secretName", "http.token.secretName", "http.tls.secretName"} {
		given, err := chartutil.ReadValues([]byte(values))
		if err != nil {
			t.Fatal(err)
		}
		table := map[string]any(given)
		keys := strings.Split(name, ".")
		for _, key := range keys[:len(keys)-1] {
			table, _ = table[key].(map[string]any)
		}
		delete(table, keys[len(keys)-1])
		text, err := given.YAML()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := render(t, text); err == nil || !strings.Contains(err.Error(), name+" is required") {
			t.Errorf("without %s: %v", name, err)
		}
	}
	if _, err := render(t, values+"replica: 3\n"); err == nil || !strings.Contains(err.Error(), "replica") {
		t.Errorf("an unknown value: %v", err)
	}
}

// TestHelmSecurity: no pod of the chart has root, a writable root, capabilities
// or the token of an account; secrets are references.
func TestHelmSecurity(t *testing.T) {
	m := rendered(t, allValues)
	for name, pod := range map[string]corev1.PodSpec{"deployment": m.deployment.Spec.Template.Spec, "job": m.job.Spec.Template.Spec} {
		s := pod.SecurityContext
		if s == nil || s.RunAsNonRoot == nil || !*s.RunAsNonRoot || *s.RunAsUser != 65532 || s.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault {
			t.Errorf("%s: pod %+v", name, s)
		}
		if pod.AutomountServiceAccountToken == nil || *pod.AutomountServiceAccountToken {
			t.Errorf("%s has the token of its account", name)
		}
		if len(pod.Containers) != 1 {
			t.Fatalf("%s has %d containers", name, len(pod.Containers))
		}
		c := pod.Containers[0].SecurityContext
		if c == nil || !*c.ReadOnlyRootFilesystem || *c.AllowPrivilegeEscalation || len(c.Capabilities.Drop) != 1 || c.Capabilities.Drop[0] != "ALL" {
			t.Errorf("%s: container %+v", name, c)
		}
		for _, mount := range pod.Containers[0].VolumeMounts {
			if !mount.ReadOnly && mount.MountPath != "/data" {
				t.Errorf("%s can write to %s", name, mount.MountPath)
			}
		}
		if limits := pod.Containers[0].Resources.Limits; limits.Memory().IsZero() {
			t.Errorf("%s has no limit of memory", name)
		}
	}
}

// TestHelmRollout: pods have probes over TLS, time to finish, and a disruption
// budget that selects them; the job runs before them.
func TestHelmRollout(t *testing.T) {
	m := rendered(t, allValues)
	pod := m.deployment.Spec.Template
	c := pod.Spec.Containers[0]
	for name, probe := range map[string]*corev1.Probe{"/healthz startup": c.StartupProbe, "/healthz liveness": c.LivenessProbe, "/readyz readiness": c.ReadinessProbe} {
		path, _, _ := strings.Cut(name, " ")
		if probe == nil || probe.HTTPGet.Path != path || probe.HTTPGet.Scheme != corev1.URISchemeHTTPS || probe.HTTPGet.Port.StrVal != c.Ports[0].Name {
			t.Errorf("%s: %+v", name, probe)
		}
	}
	if s := pod.Spec.TerminationGracePeriodSeconds; s == nil || *s < 10 {
		t.Errorf("%v seconds to finish", s)
	}
	for name, selector := range map[string]map[string]string{
		"deployment": m.deployment.Spec.Selector.MatchLabels, "budget": m.budget.Spec.Selector.MatchLabels, "service": m.service.Spec.Selector,
	} {
		if len(selector) == 0 {
			t.Errorf("%s selects every pod", name)
		}
		for key, value := range selector {
			if pod.Labels[key] != value {
				t.Errorf("%s selects %s=%s, and pods have %q", name, key, value, pod.Labels[key])
			}
			if name == "service" && m.job.Spec.Template.Labels[key] == value && key == "app.kubernetes.io/name" {
				t.Error("the service selects the pods of the job")
			}
		}
	}
	if m.budget.Spec.MaxUnavailable.IntValue() != 1 || *m.deployment.Spec.Replicas != 3 {
		t.Errorf("budget %v of %d", m.budget.Spec.MaxUnavailable, *m.deployment.Spec.Replicas)
	}
	if hook := m.job.Annotations["helm.sh/hook"]; hook != "pre-install,pre-upgrade" {
		t.Errorf("the job runs at %q", hook)
	}
	if pod.Spec.ServiceAccountName != m.account.Name {
		t.Errorf("pods have the account %s, and the chart has %s", pod.Spec.ServiceAccountName, m.account.Name)
	}
	least := rendered(t, values+"podDisruptionBudget: {enabled: false}\n")
	if least.job != nil || least.monitor != nil || least.budget != nil {
		t.Error("parts that are disabled are rendered")
	}
	if got, want := fmt.Sprint(m.monitor["kind"]), "ServiceMonitor"; got != want {
		t.Errorf("the monitor is a %s", got)
	}
	if rendered(t, values+"config: {relay: {workers: 2}}\n").deployment.Spec.Template.Annotations["checksum/config"] == least.deployment.Spec.Template.Annotations["checksum/config"] {
		t.Error("other settings start no new pods")
	}
}

// TestHelmSettings: Waybill knows the variables, the arguments and the file of
// the pods, and every file that they name is mounted.
func TestHelmSettings(t *testing.T) {
	m := rendered(t, allValues)
	pod := m.deployment.Spec.Template.Spec
	settings := accept(t, poded(t, m, pod))
	expect(t, settings, "store.url", "postgres://store", "store.migrate", "false", "sink.url", "nats://bus/SHOP", "relay.name", "shop",
		"http.listen", "0.0.0.0:9292", "relay.workers", "8", "metrics.interval", "5s", "log.level", "debug", "log.format", "json")
	if got := pod.Containers[0].Args[0]; got != "serve" {
		t.Errorf("the pods run %s", got)
	}
	least := rendered(t, values)
	expect(t, accept(t, poded(t, least, least.deployment.Spec.Template.Spec)), "store.migrate", "true", "relay.workers", "")

	job := poded(t, m, m.job.Spec.Template.Spec)
	if !slices.Equal(job.args, []string{"migrate", "up"}) {
		t.Errorf("the job runs %v", job.args)
	}
	job.args = nil
	expect(t, accept(t, job), "store.url", "postgres://owner")
}

// secretTexts are the contents of the secrets, by name and key.
var secretTexts = map[string]string{
	"shop-db/url": "postgres://store", "shop-db-owner/dsn": "postgres://owner", "shop-bus/url": "nats://bus/SHOP",
	"shop-waybill/token": "0123456789abcdef0123", "shop-waybill-tls/tls.crt": "certificate", "shop-waybill-tls/tls.key": "key",
}

// poded returns a pod as a deployment.
func poded(t *testing.T, m manifests, pod corev1.PodSpec) deployment {
	t.Helper()
	c := pod.Containers[0]
	d := deployment{args: c.Args, env: map[string]string{}, files: map[string]string{}}
	for _, e := range c.Env {
		d.env[e.Name] = e.Value
	}
	secret := func(folder, name string, items []corev1.KeyToPath) {
		t.Helper()
		if items == nil { // every key
			for key, text := range secretTexts {
				if rest, ok := strings.CutPrefix(key, name+"/"); ok {
					d.files[folder+"/"+rest] = text
				}
			}
		}
		for _, item := range items {
			text, ok := secretTexts[name+"/"+item.Key]
			if !ok {
				t.Errorf("the pod wants %s of the secret %s", item.Key, name)
			}
			d.files[folder+"/"+item.Path] = text
		}
	}
	volumes := map[string]corev1.Volume{}
	for _, v := range pod.Volumes {
		volumes[v.Name] = v
	}
	for _, mount := range c.VolumeMounts {
		v, ok := volumes[mount.Name]
		switch {
		case !ok:
			t.Errorf("the volume %s does not exist", mount.Name)
		case v.ConfigMap != nil:
			if v.ConfigMap.Name != m.config.Name {
				t.Errorf("the pod wants the settings of %s, and the chart has %s", v.ConfigMap.Name, m.config.Name)
			}
			d.files[mount.MountPath] = m.config.Data[mount.SubPath]
		case v.Secret != nil:
			secret(mount.MountPath, v.Secret.SecretName, v.Secret.Items)
		case v.Projected != nil:
			for _, source := range v.Projected.Sources {
				secret(mount.MountPath, source.Secret.Name, source.Secret.Items)
			}
		}
	}
	return d
}
