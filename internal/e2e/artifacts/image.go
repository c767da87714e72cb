package main

import (
	"archive/tar"
	"bytes"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// The user of the image, as in distroless images. Kubernetes wants a number to
// prove that it is not root.
const (
	userID   = 65532
	userName = "65532:65532"
)

// writeImage writes an image as `docker load` and `podman load` read it. The
// image has the program and nothing else: no shell, no libraries. Time zones
// and authorities are part of the program.
func (s *source) writeImage(file string, p platform, binary string) error {
	data, err := os.ReadFile(binary)
	if err != nil {
		return err
	}
	license, err := os.ReadFile(filepath.Join(s.root, "LICENSE"))
	if err != nil {
		return err
	}
	layer, err := s.layer(data, license)
	if err != nil {
		return err
	}
	img, err := s.image(p, layer)
	if err != nil {
		return err
	}
	tag, err := name.NewTag("waybill:" + s.version)
	if err != nil {
		return err
	}
	return create(file, func(w io.Writer) error { return tarball.Write(tag, img, w) })
}

// image returns an image with one layer.
func (s *source) image(p platform, layer v1.Layer) (v1.Image, error) {
	created := v1.Time{Time: s.time}
	img, err := mutate.Append(empty.Image, mutate.Addendum{
		Layer: layer, History: v1.History{Created: created, CreatedBy: "internal/e2e/artifacts"},
	})
	if err != nil {
		return nil, err
	}
	config, err := img.ConfigFile()
	if err != nil {
		return nil, err
	}
	config = config.DeepCopy()
	config.OS, config.Architecture, config.Created, config.Config = p.os, p.arch, created, s.config()
	return mutate.ConfigFile(img, config)
}

// config returns the settings of an image: what docker inspect shows.
func (s *source) config() v1.Config {
	return v1.Config{
		User:         userName,
		Entrypoint:   []string{"/waybill"},
		Cmd:          []string{"serve"},
		WorkingDir:   "/data",
		Env:          []string{"PATH=/", "HOME=/data"}, // docker exec finds the program by its name
		Volumes:      map[string]struct{}{"/data": {}},
		ExposedPorts: map[string]struct{}{"9292/tcp": {}},
		Labels: map[string]string{
			"org.opencontainers.image.title":         "waybill",
			"org.opencontainers.image.description":   "Transactional outbox, inbox and idempotency keys",
			"org.opencontainers.image.version":       s.version,
			"org.opencontainers.image.revision":      s.commit,
			"org.opencontainers.image.created":       s.time.Format(time.RFC3339),
			"org.opencontainers.image.source":        repository,
			"org.opencontainers.image.documentation": repository + "/blob/main/docs/deploy.md",
			"org.opencontainers.image.licenses":      "Apache-2.0",
		},
	}
}

// layer returns the files of an image. Its user owns /data, and can write to
// /tmp, too, unless the root is read-only.
func (s *source) layer(binary, license []byte) (v1.Layer, error) {
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for _, f := range []struct {
		kind  byte
		name  string
		mode  int64
		owner int
		data  []byte
	}{
		{tar.TypeDir, "data/", 0o750, userID, nil},
		{tar.TypeDir, "etc/", 0o755, 0, nil},
		{tar.TypeReg, "etc/group", 0o644, 0, []byte("root:x:0:\nwaybill:x:65532:\n")},
		{tar.TypeReg, "etc/passwd", 0o644, 0, []byte("root:x:0:0:root:/:/none\nwaybill:x:65532:65532:waybill:/data:/none\n")},
		{tar.TypeDir, "licenses/", 0o755, 0, nil},
		{tar.TypeReg, "licenses/LICENSE", 0o644, 0, license},
		{tar.TypeDir, "tmp/", 0o1777, 0, nil},
		{tar.TypeReg, "waybill", 0o755, 0, binary},
	} {
		header := &tar.Header{
			Typeflag: f.kind, Name: f.name, Mode: f.mode, Uid: f.owner, Gid: f.owner, Size: int64(len(f.data)), ModTime: s.time, Format: tar.FormatUSTAR,
		}
		if err := w.WriteHeader(header); err != nil {
			return nil, err
		}
		if _, err := w.Write(f.data); err != nil {
			return nil, err
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(buf.Bytes())), nil })
}
