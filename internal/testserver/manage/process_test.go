//go:build linux || darwin

package manage

import (
	"testing"
)

func TestServesOnlyKnownProgramsInTheFolder(t *testing.T) {
	const dir = "/repo/.servers/run-1-x"
	cases := []struct {
		name string
		p    process
		want bool
	}{
		{"postmaster", process{program: "postgres", args: []string{"postgres", "-D", dir + "/postgres/data"}}, true},
		{"its child", process{program: "postgres", args: []string{"postgres: checkpointer"}, cwd: dir + "/postgres/data"}, true},
		{"mariadb", process{program: "mariadbd", args: []string{"mariadbd", "--datadir=" + dir + "/mariadb/data"}}, true},
		{"mysql", process{program: "ld-linux-x86-64.so.2", args: []string{"ld-linux-x86-64.so.2", "mysqld", "--datadir=" + dir + "/mysql/data"}}, true},
		{"initdb", process{program: "initdb", args: []string{"initdb", "-D", dir + "/postgres/data"}}, true},
		{"redis", process{program: "redis-check-rdb", args: []string{"redis-server", "--dir", dir + "/redis/data"}}, true},
		{"erlang", process{program: "beam.smp", args: []string{"beam.smp"}, cwd: dir + "/rabbitmq/data"}, true},
		{"its port mapper", process{program: "epmd", args: []string{"epmd", "-port", "4369"}, cwd: dir + "/rabbitmq/data"}, true},
		{"the system's port mapper", process{program: "epmd", args: []string{"epmd", "-daemon"}, cwd: "/"}, false},
		{"java", process{program: "java", args: []string{"java", "kafka.Kafka", dir + "/kafka/server.properties"}}, true},
		{"another java", process{program: "java", args: []string{"java", "-jar", "ide.jar"}, cwd: "/repo"}, false},
		{"system cluster", process{program: "postgres", args: []string{"postgres", "-D", "/var/lib/postgresql/15/main"}}, false},
		{"another instance", process{program: "postgres", args: []string{"postgres", "-D", dir + "y/postgres/data"}}, false},
		{"a shell looking around", process{program: "bash", args: []string{"bash"}, cwd: dir}, false},
		{"an editor on the log", process{program: "vi", args: []string{"vi", dir + "/postgres.log"}}, false},
		{"a folder that is only mentioned", process{program: "postgres", args: []string{"postgres", "x" + dir}}, false},
		{"nothing known", process{program: "postgres"}, false},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			if got := c.p.serves(dir); got != c.want {
				t.Errorf("serves = %t, want %t", got, c.want)
			}
		})
	}
}

func TestStopServersEndsOursAndNoOthers(t *testing.T) {
	inside, outside := t.TempDir(), t.TempDir()
	ours := pretend(t, "postgres", inside)
	byArgument := pretend(t, "mariadbd", outside, "--datadir="+inside+"/mariadb/data")
	elsewhere := pretend(t, "postgres", outside, "-D", outside)
	stranger := pretend(t, "editor", inside)

	if err := stopServers(t.Context(), inside); err != nil {
		t.Fatal(err)
	}
	ours.mustEnd(t)
	byArgument.mustEnd(t)
	elsewhere.mustLive(t)
	stranger.mustLive(t)
}

func TestStopServersWithoutServers(t *testing.T) {
	if err := stopServers(t.Context(), t.TempDir()); err != nil {
		t.Fatal(err)
	}
}

// TestSignalVerifiedLooksAgain: a process that changed between being listed and
// being signaled is not signaled, because its id may have been reused.
func TestSignalVerifiedLooksAgain(t *testing.T) {
	dir := t.TempDir()
	stranger := pretend(t, "editor", dir)
	stale := process{pid: stranger.cmd.Process.Pid, program: "mariadbd", cwd: dir}
	if !stale.serves(dir) {
		t.Fatal("the stale description should look like a server")
	}
	if !exists("/proc/self") {
		t.Skip("this system cannot be asked twice about a process: it has no /proc")
	}
	signalVerified(stale, dir, quitSignal(stale))
	// The signal would have been SIGKILL: a process that still exists was not
	// signaled.
	if _, ok := readProc(stale.pid); !ok {
		t.Error("the stranger was signaled")
	}
	stranger.mustLive(t)
}
