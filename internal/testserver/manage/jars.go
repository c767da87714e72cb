//go:build linux || darwin

package manage

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// jars is a server from a set of Java archives with their dependencies,
// resolved by Maven. They are kept in the user's cache folder: a checkout is
// often new, and hundreds of archives are not fetched in seconds.
type jars struct {
	name    string
	version string
	roots   []string // group:artifact:version
	without []string // group:artifact, not needed here
	// ignore lists repositories that third-party poms name and that are not
	// needed: each is one more host that must be available.
	ignore []string
}

// The plug-in is pinned like all downloads.
const copyDependencies = "org.apache.maven.plugins:maven-dependency-plugin:2.8:copy-dependencies"

// pom returns the project with the required dependencies.
func (j jars) pom() string {
	var b strings.Builder
	element := func(coordinates string, inner string) string {
		parts := strings.Split(coordinates, ":")
		text := "<groupId>" + parts[0] + "</groupId><artifactId>" + parts[1] + "</artifactId>"
		if len(parts) > 2 {
			text += "<version>" + parts[2] + "</version>"
		}
		return text + inner
	}
	var exclusions string
	for _, x := range j.without {
		exclusions += "<exclusion>" + element(x, "") + "</exclusion>"
	}
	if exclusions != "" {
		exclusions = "<exclusions>" + exclusions + "</exclusions>"
	}
	b.WriteString(`<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>` + "\n")
	b.WriteString(element("waybill.test:"+j.name+":1", "<packaging>pom</packaging>\n<repositories>"))
	for _, id := range j.ignore {
		const off = "<enabled>false</enabled>"
		b.WriteString("\n<repository><id>" + id + "</id><url>file:///nowhere</url><releases>" + off + "</releases><snapshots>" + off + "</snapshots></repository>")
	}
	b.WriteString("\n</repositories>\n<dependencies>")
	for _, root := range j.roots {
		b.WriteString("\n<dependency>" + element(root, exclusions) + "</dependency>")
	}
	b.WriteString("\n</dependencies>\n</project>\n")
	return b.String()
}

// dir returns the folder of the archives. Its name changes with the list of
// archives.
func (j jars) dir() string {
	sum := sha256.Sum256([]byte(j.pom()))
	return filepath.Join(cacheDir(), fmt.Sprintf("%s-%s-%x", j.name, j.version, sum[:4]))
}

// cacheDir returns the folder of servers that are not packages of the system.
func cacheDir() string {
	cache, err := os.UserCacheDir()
	if err != nil {
		cache = filepath.Join(os.TempDir(), fmt.Sprintf("cache-%d", os.Getuid()))
	}
	return filepath.Join(cache, "waybill-testserver")
}

// classPath returns java's class path for all archives of the folder.
func (j jars) classPath() string { return filepath.Join(j.dir(), "*") }

func (j jars) there() bool { return fileExists(j.dir()) }

// programs returns the programs required to run the server, and to fetch
// missing archives.
func (j jars) programs() []program {
	list := []program{{names: []string{"java"}, packages: []string{"default-jre-headless"}}}
	if !j.there() {
		list = append(list, program{names: []string{"mvn"}, packages: []string{"maven"}})
	}
	return list
}

// ownTemp makes java unpack its libraries in the server's own folder: a killed
// server leaves them behind.
func ownTemp(at place) string { return "-Djava.io.tmpdir=" + at.dir }

// java returns a command line that runs a class of the archives.
func (j jars) java(heap string, options []string, class string, args ...string) []string {
	path, _ := findProgram("java")
	// Optimized for a quick start on few cores rather than for throughput.
	argv := []string{path, "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx" + heap, "-Djava.awt.headless=true"}
	argv = append(append(argv, options...), "-cp", j.classPath(), class)
	return append(argv, args...)
}

// fetch downloads the archives unless they are present. They are collected in a
// temporary folder and moved when complete: a folder that exists is complete.
func (j jars) fetch(ctx context.Context, h *Home) error {
	if j.there() {
		return nil
	}
	parent := filepath.Dir(j.dir())
	if err := os.MkdirAll(parent, 0o755); err != nil {
		return err
	}
	// Another run may be fetching the same archives.
	lock, err := lockFile(ctx, filepath.Join(parent, j.name+".lock"))
	if err != nil {
		return err
	}
	defer lock.unlock()
	if j.there() {
		return nil
	}
	h.say("fetching %s %s with Maven, once: this takes a minute or more ...", j.name, j.version)
	building, err := os.MkdirTemp(parent, j.name+"-building-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(building) }()
	if err := j.copy(ctx, building); err != nil {
		return err
	}
	return os.Rename(filepath.Join(building, "libs"), j.dir())
}

// copy runs Maven, which keeps its downloads: a second attempt continues where
// the first one failed.
func (j jars) copy(ctx context.Context, dir string) error {
	maven, ok := findProgram("mvn")
	if !ok {
		return errors.New("mvn is not installed: install maven")
	}
	pom := filepath.Join(dir, "pom.xml")
	if err := os.WriteFile(pom, []byte(j.pom()), 0o644); err != nil {
		return err
	}
	const tries = 3
	for try := 1; ; try++ {
		cmd := exec.CommandContext(ctx, maven, "--batch-mode", "--quiet", "--file", pom, copyDependencies,
			"-DincludeScope=runtime", "-DoutputDirectory="+filepath.Join(dir, "libs"))
		cmd.WaitDelay = 2 * time.Second
		out, err := cmd.CombinedOutput()
		if err == nil || ctx.Err() != nil {
			return errors.Join(err, context.Cause(ctx))
		}
		if try == tries {
			return fmt.Errorf("mvn: %w:\n%s", err, tail(string(out), 12))
		}
	}
}
