package main

import (
	"archive/tar"
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
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

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/validate"
)

// containerVariable has a container as JSON, in a process that becomes one.
const containerVariable = "WAYBILL_TEST_CONTAINER"

// A container is a process on the files of an image.
type container struct {
	Root    string // folder with the files
	Dir     string
	Command []string
	Env     []string
	Probe   string // file outside of /data, which cannot be created
}

// A test that starts a container runs this binary again: the root of a process
// is set by the process itself.
func init() {
	if text := os.Getenv(containerVariable); text != "" {
		fmt.Fprintln(os.Stderr, "container:", become(text))
		os.Exit(125)
	}
}

// become makes this process one of an image: its root is the folder of the
// image, read-only but for /data, and it is the user of the image. It returns
// only if that fails.
func become(text string) error {
	var c container
	if err := json.Unmarshal([]byte(text), &c); err != nil {
		return err
	}
	data := filepath.Join(c.Root, "data")
	for _, m := range []struct {
		from, to string
		flags    uintptr
	}{
		{"none", "/", syscall.MS_REC | syscall.MS_PRIVATE},
		{c.Root, c.Root, syscall.MS_BIND},
		{data, data, syscall.MS_BIND},
		{"none", c.Root, syscall.MS_BIND | syscall.MS_REMOUNT | syscall.MS_RDONLY | syscall.MS_NOSUID},
	} {
		if err := syscall.Mount(m.from, m.to, "", m.flags, ""); err != nil {
			return fmt.Errorf("mount %s: %w", m.to, err)
		}
	}
	if err := errors.Join(syscall.Chroot(c.Root), syscall.Chdir(c.Dir)); err != nil {
		return fmt.Errorf("chroot: %w", err)
	}
	if err := os.WriteFile(c.Probe, nil, 0o600); !errors.Is(err, syscall.EROFS) {
		return fmt.Errorf("the root is not read-only: %w", err)
	}
	if os.Getuid() == 0 { // otherwise the user is mapped
		if err := errors.Join(syscall.Setgroups(nil), syscall.Setgid(userID), syscall.Setuid(userID)); err != nil {
			return fmt.Errorf("user: %w", err)
		}
	}
	return syscall.Exec(c.Command[0], c.Command, c.Env)
}

// image returns the image of the release.
func image(t *testing.T) (v1.Image, *v1.ConfigFile) {
	t.Helper()
	dir, base := built(t)
	img, err := tarball.ImageFromPath(filepath.Join(dir, base+".image.tar"), nil) // what docker load reads
	if err != nil {
		t.Fatal(err)
	}
	config, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	return img, config
}

// TestImage: the image is valid, and is configured to run without root, without
// a shell and with one writable folder.
func TestImage(t *testing.T) {
	img, file := image(t)
	if err := validate.Image(img); err != nil {
		t.Error(err)
	}
	if file.OS != "linux" || !file.Created.Equal(testTime) {
		t.Errorf("the image is for %s/%s, created %s", file.OS, file.Architecture, file.Created)
	}
	config := file.Config
	if config.User != "65532:65532" || config.WorkingDir != "/data" {
		t.Errorf("user %q, folder %q", config.User, config.WorkingDir)
	}
	if got := slices.Concat(config.Entrypoint, config.Cmd); !slices.Equal(got, []string{"/waybill", "serve"}) {
		t.Errorf("command %q", got)
	}
	if !slices.Equal(config.Env, []string{"PATH=/", "HOME=/data"}) {
		t.Errorf("environment %q", config.Env)
	}
	if got := slices.Collect(maps.Keys(config.ExposedPorts)); !slices.Equal(got, []string{"9292/tcp"}) {
		t.Errorf("ports %q", got)
	}
	if got := slices.Collect(maps.Keys(config.Volumes)); !slices.Equal(got, []string{"/data"}) {
		t.Errorf("volumes %q", got)
	}
	for label, want := range map[string]string{"version": testVersion, "revision": testCommit, "created": "2026-01-01T00:00:00Z", "licenses": "Apache-2.0"} {
		if got := config.Labels["org.opencontainers.image."+label]; got != want {
			t.Errorf("label %s is %q, want %q", label, got, want)
		}
	}
	owners := map[string]string{}
	for _, h := range extract(t, img, "") {
		owners[h.Name] = fmt.Sprintf("%d:%d %o", h.Uid, h.Gid, h.Mode)
	}
	want := map[string]string{
		"data": "65532:65532 750", "tmp": "0:0 1777", "waybill": "0:0 755", "licenses": "0:0 755", "licenses/LICENSE": "0:0 644",
		"etc": "0:0 755", "etc/passwd": "0:0 644", "etc/group": "0:0 644",
	}
	if !maps.Equal(owners, want) {
		t.Errorf("the files are %v, want %v", owners, want)
	}
}

// extract reads the files of an image, and writes them to a folder unless that
// is "".
func extract(t *testing.T, img v1.Image, to string) []*tar.Header {
	t.Helper()
	files := mutate.Extract(img)
	defer func() { _ = files.Close() }()
	var headers []*tar.Header
	for r := tar.NewReader(files); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return headers
		}
		if err != nil {
			t.Fatal(err)
		}
		h.Name = strings.TrimSuffix(h.Name, "/")
		headers = append(headers, h)
		if to == "" {
			continue
		}
		name := filepath.Join(to, h.Name)
		if h.Typeflag == tar.TypeDir {
			err = os.Mkdir(name, 0o700)
		} else {
			var data []byte
			if data, err = io.ReadAll(r); err == nil {
				err = os.WriteFile(name, data, 0o600)
			}
		}
		if err == nil && os.Getuid() == 0 {
			err = os.Chown(name, h.Uid, h.Gid)
		}
		if err == nil {
			err = os.Chmod(name, h.FileInfo().Mode())
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// start returns a command that runs the image as a container with a read-only
// root does. args replace the command of the image.
func start(t *testing.T, root string, config v1.Config, env []string, args ...string) *exec.Cmd {
	t.Helper()
	c := container{
		Root: root, Dir: config.WorkingDir, Command: slices.Concat(config.Entrypoint, args), Env: slices.Concat(config.Env, env), Probe: "/probe",
	}
	if len(args) == 0 {
		c.Command = slices.Concat(config.Entrypoint, config.Cmd)
	}
	text, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), self)
	cmd.Env = []string{containerVariable + "=" + string(text)}
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS}
	if os.Getuid() != 0 { // in a name space of users, this one is the image's
		cmd.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: userID, HostID: os.Getuid(), Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: userID, HostID: os.Getgid(), Size: 1}}
	}
	return cmd
}

// output runs a command of the image to its end.
func output(t *testing.T, cmd *exec.Cmd) string {
	t.Helper()
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if errors.Is(err, syscall.EPERM) || strings.Contains(stderr.String(), "container: mount") {
		if os.Getuid() == 0 {
			t.Fatalf("root is not allowed to mount a folder here (CAP_SYS_ADMIN): %v\n%s", err, stderr.String())
		}
		t.Skipf("this user is not root, and the kernel permits no name spaces of users: %v\n%s", err, stderr.String())
	}
	if err != nil {
		t.Fatalf("%v\n%s", err, stderr.String())
	}
	return string(out)
}

var address = regexp.MustCompile(`msg="HTTP API started".* address=(\S+)`)

// TestImageRuns starts the image on its files, as its user, with a read-only
// root: it prints its version, delivers an event from SQLite in /data to
// standard output, is ready, and SIGTERM ends it with 0.
func TestImageRuns(t *testing.T) {
	img, file := image(t)
	root := t.TempDir()
	if err := os.Chmod(root, 0o755); err != nil {
		t.Fatal(err)
	}
	extract(t, img, root)
	config := file.Config
	if got := output(t, start(t, root, config, nil, "version")); !strings.Contains(got, testVersion+" commit "+testCommit) {
		t.Errorf("version: %q", got)
	}

	daemon := start(t, root, config, []string{"WAYBILL_SINK=log:", "WAYBILL_HTTP_LISTEN=127.0.0.1:0", "TZ=Asia/Kolkata"})
	printed, logged := follow(t, daemon.StdoutPipe), follow(t, daemon.StderrPipe)
	if err := daemon.Start(); err != nil {
		t.Fatal(err)
	}
	var zone bool
	at := logged.find(t, func(line string) string {
		zone = zone || strings.Contains(line, "+05:30 ")
		if m := address.FindStringSubmatch(line); m != nil {
			return m[1]
		}
		return ""
	})
	if !zone {
		t.Error("the times of the log are not those of TZ: the program has no time zones of its own")
	}
	ready(t, "http://"+at+"/readyz")

	sent := output(t, start(t, root, config, nil, "send", "OrderPlaced", "--aggregate-type", "order", "--aggregate", "17", "--payload", `{"total": 9990}`))
	id := strings.TrimSpace(sent[strings.LastIndex(sent, ":")+1:])
	printed.find(t, func(line string) string {
		if strings.Contains(line, id) {
			return line
		}
		return ""
	})
	if err := daemon.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	logged.drain()
	printed.drain()
	if err := daemon.Wait(); err != nil {
		t.Errorf("after SIGTERM: %v", err)
	}
	info, err := os.Stat(filepath.Join(root, "data", "waybill.db"))
	if err != nil {
		t.Fatal(err)
	}
	owner, _ := info.Sys().(*syscall.Stat_t)
	if want := userID; os.Getuid() == 0 && owner.Uid != uint32(want) {
		t.Errorf("the database belongs to %d", owner.Uid)
	}
}

// lines are those of a stream, read while the process runs.
type lines struct {
	next chan string
	all  []string
}

// follow reads a stream of a process that is about to start.
func follow(t *testing.T, pipe func() (io.ReadCloser, error)) *lines {
	t.Helper()
	from, err := pipe()
	if err != nil {
		t.Fatal(err)
	}
	l := &lines{next: make(chan string, 1000)}
	go func() {
		defer close(l.next)
		for s := bufio.NewScanner(from); s.Scan(); {
			l.next <- s.Text()
		}
	}()
	return l
}

// find returns the first result that is not "".
func (l *lines) find(t *testing.T, match func(line string) string) string {
	t.Helper()
	deadline := time.After(2 * time.Minute)
	for {
		select {
		case line, ok := <-l.next:
			if !ok {
				t.Fatalf("the process ended:\n%s", strings.Join(l.all, "\n"))
			}
			l.all = append(l.all, line)
			if found := match(line); found != "" {
				return found
			}
		case <-deadline:
			t.Fatalf("the line does not come:\n%s", strings.Join(l.all, "\n"))
		}
	}
}

// drain reads the rest of the stream.
func (l *lines) drain() {
	for range l.next { // until the process ends
	}
}

// ready waits until a URL answers with 200.
func ready(t *testing.T, url string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			t.Fatal(err)
		}
		answer, err := http.DefaultClient.Do(request)
		if err == nil {
			_ = answer.Body.Close()
			if answer.StatusCode == http.StatusOK {
				return
			}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("%s does not answer with 200: %v", url, err)
		}
	}
}
