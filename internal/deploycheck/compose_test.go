package deploycheck

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/compose-spec/compose-go/v2/loader"
	"github.com/compose-spec/compose-go/v2/types"
	"go.yaml.in/yaml/v3"
)

// project loads compose.yaml with the loader of docker compose, which checks it
// by its schema.
func project(t *testing.T) *types.Project {
	t.Helper()
	file, err := filepath.Abs(filepath.Join(deploy, "compose", "compose.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	p, err := loader.LoadWithContext(t.Context(), types.ConfigDetails{
		WorkingDir: filepath.Dir(file), ConfigFiles: []types.ConfigFile{{Filename: file}}, Environment: types.Mapping{},
	})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// secrets runs secrets.sh in a copy of its folder and returns the texts.
func secrets(t *testing.T) map[string]string {
	t.Helper()
	dir := t.TempDir()
	script := filepath.Join(dir, "secrets.sh")
	if err := os.WriteFile(script, []byte(read(t, "compose", "secrets.sh")), 0o700); err != nil {
		t.Fatal(err)
	}
	all := func() map[string]string {
		t.Helper()
		if out, err := exec.CommandContext(t.Context(), script).CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		entries, err := os.ReadDir(filepath.Join(dir, "secrets"))
		if err != nil {
			t.Fatal(err)
		}
		texts := map[string]string{}
		for _, e := range entries {
			text, err := os.ReadFile(filepath.Join(dir, "secrets", e.Name()))
			if err != nil {
				t.Fatal(err)
			}
			texts[e.Name()] = string(text)
		}
		return texts
	}
	first := all()
	for name, text := range all() {
		if first[name] != text {
			t.Errorf("secrets.sh changed %s, which existed", name)
		}
	}
	if info, err := os.Stat(filepath.Join(dir, "secrets")); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("the folder of the secrets: %v, %v", info, err)
	}
	return first
}

// TestCompose: the file is valid, its files exist or are written by secrets.sh,
// its ports are those of this machine only, and Waybill runs without rights.
func TestCompose(t *testing.T) {
	p := project(t)
	made := secrets(t)
	for name, s := range p.Secrets {
		if made[filepath.Base(s.File)] == "" {
			t.Errorf("secrets.sh does not write %s", name)
		}
	}
	for name, s := range p.Services {
		for _, v := range s.Volumes {
			if v.Type != types.VolumeTypeBind {
				continue
			}
			if info, err := os.Stat(v.Source); err != nil || !info.Mode().IsRegular() {
				t.Errorf("%s mounts %s: %v", name, v.Source, err)
			}
		}
		for _, port := range s.Ports {
			if port.HostIP != "127.0.0.1" {
				t.Errorf("%s is open to other machines: %+v", name, port)
			}
		}
	}
	w := p.Services["waybill"]
	if !w.ReadOnly || !slices.Equal(w.CapDrop, []string{"ALL"}) || !slices.Contains(w.SecurityOpt, "no-new-privileges:true") || w.Privileged || w.User != "" {
		t.Errorf("waybill: read-only %v, capabilities without %v, options %v", w.ReadOnly, w.CapDrop, w.SecurityOpt)
	}
	if w.StopGracePeriod == nil || time.Duration(*w.StopGracePeriod) < 10*time.Second {
		t.Errorf("waybill has %v to finish its deliveries", w.StopGracePeriod)
	}
	for _, name := range []string{"postgres", "nats"} {
		if w.DependsOn[name].Condition != types.ServiceConditionHealthy || p.Services[name].HealthCheck == nil {
			t.Errorf("waybill does not wait until %s is healthy", name)
		}
	}
	if info, err := os.Stat(filepath.Join(w.Build.Context, w.Build.Dockerfile)); err != nil || info.IsDir() {
		t.Errorf("the image: %v", err)
	}
}

// TestComposeMonitoring: the files that Prometheus and Grafana read name
// services, secrets and files of compose.yaml.
func TestComposeMonitoring(t *testing.T) {
	p := project(t)
	mounted := func(service string) map[string]string { // target to source
		found := map[string]string{}
		for _, v := range p.Services[service].Volumes {
			found[v.Target] = v.Source
		}
		for _, s := range p.Services[service].Secrets {
			found["/run/secrets/"+s.Source] = p.Secrets[s.Source].File
		}
		return found
	}
	var prometheus struct {
		RuleFiles     []string `yaml:"rule_files"`
		ScrapeConfigs []struct {
			Authorization struct {
				File string `yaml:"credentials_file"`
			}
			TLS struct {
				File string `yaml:"ca_file"`
			} `yaml:"tls_config"`
			Static []struct{ Targets []string } `yaml:"static_configs"`
		} `yaml:"scrape_configs"`
	}
	var sources struct {
		Datasources []struct{ Type, URL string }
	}
	var providers struct {
		Providers []struct{ Options struct{ Path string } }
	}
	decode(t, &prometheus, "prometheus.yml")
	decode(t, &sources, "grafana", "datasource.yaml")
	decode(t, &providers, "grafana", "dashboards.yaml")
	files := mounted("prometheus")
	if len(prometheus.RuleFiles) != 1 || filepath.Base(files["/etc/prometheus/"+prometheus.RuleFiles[0]]) != "waybill.rules.yml" {
		t.Errorf("the rules are %v of %v", prometheus.RuleFiles, files)
	}
	scrape := prometheus.ScrapeConfigs[0]
	if filepath.Base(files[scrape.Authorization.File]) != "http_token" || filepath.Base(files[scrape.TLS.File]) != "http_cert" {
		t.Errorf("Prometheus reads %s and %s of %v", scrape.Authorization.File, scrape.TLS.File, files)
	}
	if host, port, err := net.SplitHostPort(scrape.Static[0].Targets[0]); err != nil || p.Services[host].Name != "waybill" ||
		!strings.HasSuffix(*p.Services[host].Environment["WAYBILL_HTTP_LISTEN"], ":"+port) {
		t.Errorf("Prometheus scrapes %v", scrape.Static)
	}
	if s := sources.Datasources[0]; s.Type != "prometheus" || s.URL != "http://prometheus:9090" || p.Services["prometheus"].Name == "" {
		t.Errorf("Grafana reads %+v", s)
	}
	if path := providers.Providers[0].Options.Path; filepath.Base(mounted("grafana")[path+"/waybill.json"]) != "waybill.json" {
		t.Errorf("Grafana reads dashboards from %s", path)
	}
}

// decode reads a file of deploy/compose.
func decode(t *testing.T, into any, name ...string) {
	t.Helper()
	if err := yaml.Unmarshal([]byte(read(t, append([]string{"compose"}, name...)...)), into); err != nil {
		t.Fatalf("%v: %v", name, err)
	}
}

// composed returns the service of compose.yaml as a deployment.
func composed(t *testing.T) (deployment, map[string]string) {
	t.Helper()
	p, made := project(t), secrets(t)
	d := deployment{env: map[string]string{}, files: map[string]string{}}
	for name, value := range p.Services["waybill"].Environment {
		if value == nil {
			t.Fatalf("%s has no value", name)
		}
		d.env[name] = *value
	}
	for _, s := range p.Services["waybill"].Secrets {
		d.files["/run/secrets/"+s.Source] = made[filepath.Base(p.Secrets[s.Source].File)]
	}
	return d, made
}

// TestComposeSettings: Waybill knows the settings, and they lead to the servers
// of the file.
func TestComposeSettings(t *testing.T) {
	d, made := composed(t)
	settings := accept(t, d)
	expect(t, settings, "sink.url", "nats://nats:4222/shop?create=true", "relay.name", "shop", "http.listen", "0.0.0.0:9292")
	if url := settings["store.url"].Value; !strings.HasPrefix(url, "postgres://shop:") || !strings.Contains(url, "@postgres:5432/shop") {
		t.Errorf("store.url is %s", url)
	}
	if !strings.Contains(made["store_url"], strings.TrimSpace(made["postgres_password"])) {
		t.Error("the password of store_url is not that of PostgreSQL")
	}
}

var started = regexp.MustCompile(`"HTTP API started".*"address":"([^"]+)"`)

// TestComposeServes starts Waybill with the environment of compose.yaml, on
// SQLite and standard output: Prometheus reaches it by its name, with the token
// and the certificate of the secrets, and nothing is told without the token.
func TestComposeServes(t *testing.T) {
	d, made := composed(t)
	delete(d.env, "WAYBILL_STORE_FILE")
	d.env["WAYBILL_STORE"], d.env["WAYBILL_SINK"], d.env["WAYBILL_HTTP_LISTEN"] = "sqlite:shop.db", "log:", "0.0.0.0:0"
	args, env := d.localize(t)
	cmd := exec.CommandContext(t.Context(), program(t), append([]string{"serve"}, args...)...)
	cmd.Dir, cmd.Env = t.TempDir(), env
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	log := bufio.NewScanner(stderr)
	var lines []string
	port := ""
	for port == "" && log.Scan() {
		lines = append(lines, log.Text())
		if m := started.FindStringSubmatch(log.Text()); m != nil {
			_, port, err = net.SplitHostPort(m[1])
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	if port == "" {
		t.Fatalf("no HTTP API:\n%s", strings.Join(lines, "\n"))
	}
	rest := make(chan struct{})
	go func() {
		defer close(rest)
		for log.Scan() { // the pipe must not fill
		}
	}()
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM([]byte(made["http_cert"])) {
		t.Fatal("http_cert is no certificate")
	}
	client := &http.Client{Transport: &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: roots},
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, network, "127.0.0.1:"+port)
		},
	}}
	get := func(url, token string) int {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
		if err != nil {
			t.Fatal(err)
		}
		if token != "" {
			r.Header.Set("Authorization", "Bearer "+token)
		}
		answer, err := client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		_ = answer.Body.Close()
		return answer.StatusCode
	}
	token := strings.TrimSpace(made["http_token"])
	for _, tc := range []struct {
		url, token string
		want       int
	}{
		{"https://waybill:9292/metrics", token, http.StatusOK},
		{"https://waybill:9292/metrics", "", http.StatusUnauthorized},
		{"https://localhost:9292/healthz", "", http.StatusOK},
	} {
		if got := get(tc.url, tc.token); got != tc.want {
			t.Errorf("%s answers with %d, want %d", tc.url, got, tc.want)
		}
	}
	client.CloseIdleConnections()
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	<-rest
	if err := cmd.Wait(); err != nil {
		t.Errorf("after SIGTERM: %v", err)
	}
}
