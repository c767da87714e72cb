package command_test

import (
	"database/sql"
	"os"
	"strings"
	"testing"

	"github.com/waybillhq/waybill/cmd/waybill/internal/settings"
)

// txOf is the transaction of SQLite's store.
type txOf = *sql.Tx

const canary = "c4nary-Passw0rds"

// TestNoOutputHasASecret puts a password into valid, invalid and truncated
// URLs, in every source of settings, and searches all output for it.
func TestNoOutputHasASecret(t *testing.T) {
	t.Chdir(t.TempDir())
	s := &script{t: t, ids: map[string]string{}}
	look := func(what string, environ []string, args ...string) {
		t.Helper()
		s.environ = environ
		out, errs, _ := s.run(t.Context(), args, "")
		if strings.Contains(out+errs, canary) {
			t.Errorf("%s: waybill %s shows the secret:\n%s%s", what, strings.ReplaceAll(strings.Join(args, " "), canary, "…"), out, errs)
		}
	}
	stores := []string{
		"postgres://u:" + canary + "@127.0.0.1:1/x?sslmode=disable", "postgres://u:" + canary + "@127.0.0.1:1/x?sslmode=odd", "postgres://u:" + canary,
		"postgres://127.0.0.1:1/x?password=" + canary, "postgres://u:" + canary + "@", "postgres:u:" + canary + "@h", "postgres://u:%zz" + canary + "@h/x",
		"mysql://u:" + canary + "@127.0.0.1:1/x", "mysql://u:" + canary + "@127.0.0.1:1", "mysql://u:" + canary, "mysql://u:" + canary + "@127.0.0.1:1/x?odd=" + canary,
		"u:" + canary + "@tcp(127.0.0.1:1)/x", canary, "oracle://u:" + canary + "@h/x", canary + "://x",
	}
	sinks := []string{
		"nats://u:" + canary + "@127.0.0.1:1", "nats://" + canary + "@127.0.0.1:1", "nats://u:" + canary, "nats://a:" + canary + "@h,nats://b:" + canary + "@h",
		"amqp://u:" + canary + "@127.0.0.1:1/", "amqp://u:" + canary, "redis://u:" + canary + "@127.0.0.1:1/0", "redis://u:" + canary + "@127.0.0.1:1/zero",
		"kafka://u:" + canary + "@127.0.0.1:1", "kafka://u:" + canary + "@127.0.0.1:1,127.0.0.1:2?sasl=" + canary, "kafka://u:" + canary,
		"pulsar://u:" + canary + "@127.0.0.1:1", "pulsar://127.0.0.1:1?token=" + canary, "pulsar+ssl://u:" + canary,
		"https://u:" + canary + "@127.0.0.1:1/" + canary, "https://127.0.0.1:1/x#" + canary, "nats:" + canary, "log:" + canary, canary, "sqs://u:" + canary + "@h",
	}
	quick := []string{"--store-connect-timeout", "2s"}
	for _, url := range stores {
		for _, args := range [][]string{{"stats"}, {"migrate", "up"}, {"migrate", "sql"}, {"config"}, {"config", "--json"}, {"serve", "--sink", "log:"}} {
			look("flag", nil, append(append(args, "--store", url), quick...)...)
		}
		look("variable", []string{"WAYBILL_STORE=" + url}, append([]string{"stats"}, quick...)...)
		s.must(os.WriteFile("secret", []byte(url), 0o600))
		look("file", []string{"WAYBILL_STORE_FILE=secret"}, append([]string{"stats"}, quick...)...)
		s.must(os.WriteFile("w.yaml", []byte("relay: {workers: x}\nstore: {url: '"+url+"'}\n"), 0o600))
		look("a file that is wrong elsewhere", nil, "config", "--config", "w.yaml")
		look("a wrong setting beside it", nil, "stats", "--store", url, "--relay-workers", "x")
	}
	for _, url := range sinks {
		for _, args := range [][]string{{"config"}, {"config", "--json"}, {"serve", "--sink-secret", canary}, {"serve", "--sink-topic", "{odd}", "--sink-secret", "unsigned"}} {
			if strings.HasPrefix(url, "pulsar") && args[0] == "serve" && (args[1] != "--sink-secret" || strings.Contains(url, "@")) {
				continue // its client tries a dead address for 15 s; one case is enough
			}
			if strings.HasPrefix(url, "https") && args[0] == "serve" && args[len(args)-1] == "unsigned" {
				continue // it would start
			}
			look("flag", nil, append(args, "--sink", url, "--http-token", canary)...)
		}
	}
	for _, url := range []string{"postgres://u:" + canary + "@h/x", "nats://" + canary + "@h", "u:" + canary + "@tcp(h)/x", "pulsar://h?token=" + canary} {
		for _, k := range settings.Table() { // as the value of another setting
			if k.Secret() || k.Switch() && k.Name != "enabled" {
				continue
			}
			look("the wrong flag", nil, "serve", "--sink", "log:", "--log-format", "json", "--enabled=false", "--"+k.Flag()+"="+url)
			look("the wrong variable", []string{k.Variable() + "=" + url}, "config")
			look("the wrong variable, for programs", []string{k.Variable() + "=" + url}, "config", "--json")
			s.must(os.WriteFile("w.yaml", []byte(k.Name+": '"+url+"'\n"), 0o600))
			look("the wrong key of the file", nil, "doctor", "--config", "w.yaml")
		}
		for _, args := range [][]string{{"show", url}, {url}, {"list", "--state", url}, {"config", "--config", url}, {"stats", "--relay", url}, {"stats", url}, {"stats", "--" + url}} {
			look("the wrong argument", nil, args...)
		}
	}
	look("a warning", []string{"WAYBILL_STROE=postgres://u:" + canary + "@h/x"}, "config")
}

// TestARunningDaemonShowsNoSecret includes the log while the sink refuses
// connections.
func TestARunningDaemonShowsNoSecret(t *testing.T) {
	t.Chdir(t.TempDir())
	d := serve(t, nil, "--sink", "http://u:"+canary+"@127.0.0.1:1/"+canary, "--sink-secret", "unsigned", "--log-level", "debug", "--relay-poll-interval", "20ms", "--http-token", canary)
	waitFor(t, "serving", func() bool { return strings.Contains(d.err.String(), "lanes acquired") })
	s := &script{t: t, ids: map[string]string{}}
	if _, errs, code := s.run(t.Context(), []string{"send", "OrderPlaced"}, ""); code != 0 {
		t.Fatal(errs)
	}
	waitFor(t, "the sink to be found down", func() bool { return strings.Contains(d.err.String(), "refused") })
	d.end(t)
	out, errs, _ := s.run(t.Context(), []string{"list", "--json"}, "")
	for name, text := range map[string]string{"its log": d.err.String(), "its output": d.out.String(), "the tables": out + errs} {
		if strings.Contains(text, canary) {
			t.Errorf("%s shows the secret:\n%s", name, text)
		}
	}
}

// TestEverySettingIsAFlagOfServe checks that the help has default and unit.
func TestEverySettingIsAFlagOfServe(t *testing.T) {
	t.Chdir(t.TempDir())
	s := &script{t: t, ids: map[string]string{}}
	help, _, _ := s.run(t.Context(), []string{"serve", "--help"}, "")
	for _, k := range settings.Table() {
		line := ""
		for l := range strings.Lines(help) {
			if strings.Contains(l, "--"+k.Flag()+" "+k.Unit) {
				line = l
			}
		}
		if line == "" || k.Default != "" && k.Default != "0" && !strings.Contains(line, "(default "+k.Default) && k.Default != "0s" && k.Default != "false" {
			t.Errorf("--%s: %q", k.Flag(), line)
		}
	}
}
