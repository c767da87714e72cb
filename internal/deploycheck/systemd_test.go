package deploycheck

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/coreos/go-systemd/v22/unit"
)

// options returns the options of the service, by name.
func options(t *testing.T) map[string][]string {
	t.Helper()
	parsed, err := unit.DeserializeOptions(strings.NewReader(read(t, "systemd", "waybill.service")))
	if err != nil {
		t.Fatal(err)
	}
	found := map[string][]string{}
	for _, o := range parsed {
		found[o.Name] = append(found[o.Name], o.Value)
	}
	return found
}

// TestSystemdSettings: Waybill knows the variables of the unit and of its file,
// and reads the credentials.
func TestSystemdSettings(t *testing.T) {
	o := options(t)
	d := deployment{env: map[string]string{}, files: map[string]string{}}
	secrets := map[string]string{
		"/etc/waybill/store-url": "postgres://shop@db.internal/shop\n", "/etc/waybill/sink-url": "nats://bus.internal/ORDERS\n",
	}
	for _, c := range o["LoadCredential"] {
		name, file, _ := strings.Cut(c, ":")
		if secrets[file] == "" {
			t.Errorf("unexpected credential %s", c)
		}
		d.files["%d/"+name] = secrets[file]
	}
	variables := o["Environment"]
	for line := range strings.Lines(read(t, "systemd", "waybill.env")) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
			variables = append(variables, line)
		}
	}
	for _, v := range variables {
		name, value, _ := strings.Cut(v, "=")
		d.env[name] = value
	}
	command := strings.Fields(o["ExecStart"][0])
	if command[0] != "/usr/local/bin/waybill" {
		t.Errorf("the program is %s", command[0])
	}
	d.args = command[1:]
	expect(t, accept(t, d), "store.url", "postgres://shop@db.internal/shop", "sink.url", "nats://bus.internal/ORDERS")
	if len(o["EnvironmentFile"]) != 1 || strings.TrimPrefix(o["EnvironmentFile"][0], "-") != "/etc/waybill/waybill.env" {
		t.Errorf("the file of settings is %v", o["EnvironmentFile"])
	}
}

// TestSystemdAnalyze: systemd knows every line of the unit, and judges the
// service to be confined.
func TestSystemdAnalyze(t *testing.T) {
	analyze, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Skip("no systemd-analyze: install the package systemd")
	}
	root := t.TempDir()
	for name, text := range map[string]string{
		"usr/local/bin/waybill": "#!/bin/sh\n", "etc/systemd/system/waybill.service": read(t, "systemd", "waybill.service"),
	} {
		file := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	service := filepath.Join(root, "etc/systemd/system/waybill.service")
	out, err := exec.CommandContext(t.Context(), analyze, "verify", "--man=no", "--recursive-errors=no", "--root="+root, service).CombinedOutput()
	if err != nil || strings.Contains(string(out), "waybill.service:") {
		t.Errorf("verify: %v\n%s", err, out)
	}
	// From 0 to 100; 20 is what systemd calls OK.
	out, err = exec.CommandContext(t.Context(), analyze, "security", "--offline=true", "--threshold=20", service).CombinedOutput()
	if err != nil {
		t.Errorf("security: %v\n%s", err, out)
	}
}
