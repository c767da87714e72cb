package main

import (
	"archive/tar"
	"archive/zip"
	"cmp"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// sumsFile has the checksums of all other files, as sha256sum writes them.
const sumsFile = "SHA256SUMS"

// produce builds the files for a platform and returns their names.
func (s *source) produce(ctx context.Context, p platform, out string) ([]string, error) {
	scratch, err := os.MkdirTemp("", "waybill-artifacts-*")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(scratch) }()
	binary := filepath.Join(scratch, p.binary())
	if err := s.build(ctx, p, binary); err != nil {
		return nil, err
	}
	base := fmt.Sprintf("waybill_%s_%s_%s", s.version, p.os, p.arch)
	packed, err := s.contents(p, base, binary)
	if err != nil {
		return nil, err
	}
	archive, write := base+".tar.gz", writeTar
	if p.os == "windows" {
		archive, write = base+".zip", writeZip
	}
	files := []string{filepath.Join(out, archive), filepath.Join(out, base+".cdx.json")}
	err = create(files[0], func(w io.Writer) error { return write(w, packed, s.time) })
	if err == nil {
		err = s.writeBOM(files[1], p, binary)
	}
	if err == nil && p.os == "linux" {
		files = append(files, filepath.Join(out, base+".image.tar"))
		err = s.writeImage(files[2], p, binary)
	}
	return files, err
}

// An entry is a file in an archive.
type entry struct {
	name string
	mode int64
	data []byte
}

// extras are the files of the repository in every archive, and unitFiles those
// in archives for Linux.
var (
	extras    = []string{"CHANGELOG.md", "LICENSE", "README.md", "deploy/grafana/waybill.json", "deploy/prometheus/waybill.rules.yml"}
	unitFiles = []string{"deploy/systemd/waybill.env", "deploy/systemd/waybill.service"}
)

// contents returns the files of an archive, sorted.
func (s *source) contents(p platform, folder, binary string) ([]entry, error) {
	list := map[string]string{p.binary(): binary}
	names := extras
	if p.os == "linux" {
		names = slices.Concat(extras, unitFiles)
	}
	for _, name := range names {
		list[name] = filepath.Join(s.root, filepath.FromSlash(name))
	}
	var entries []entry
	for name, file := range list {
		data, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		mode := int64(0o644)
		if file == binary {
			mode = 0o755
		}
		entries = append(entries, entry{path.Join(folder, name), mode, data})
	}
	slices.SortFunc(entries, func(a, b entry) int { return cmp.Compare(a.name, b.name) })
	return entries, nil
}

// level is the compression of a tar. Tests lower it: the race detector makes
// the highest one take minutes.
var level = gzip.BestCompression

// writeTar writes a compressed archive with one time for all files.
func writeTar(to io.Writer, entries []entry, at time.Time) error {
	zipped, err := gzip.NewWriterLevel(to, level)
	if err != nil {
		return err
	}
	w := tar.NewWriter(zipped)
	for _, e := range entries {
		header := &tar.Header{Typeflag: tar.TypeReg, Name: e.name, Mode: e.mode, Size: int64(len(e.data)), ModTime: at, Format: tar.FormatUSTAR}
		if err := w.WriteHeader(header); err != nil {
			return err
		}
		if _, err := w.Write(e.data); err != nil {
			return err
		}
	}
	return errors.Join(w.Close(), zipped.Close())
}

// writeZip writes an archive with one time for all files.
func writeZip(to io.Writer, entries []entry, at time.Time) error {
	w := zip.NewWriter(to)
	for _, e := range entries {
		header := &zip.FileHeader{Name: e.name, Method: zip.Deflate, Modified: at}
		header.SetMode(os.FileMode(e.mode))
		file, err := w.CreateHeader(header)
		if err != nil {
			return err
		}
		if _, err := file.Write(e.data); err != nil {
			return err
		}
	}
	return w.Close()
}

// writeSums writes the checksums of the files in a folder.
func writeSums(dir string) error {
	names, err := written(dir)
	if err != nil {
		return err
	}
	var sums strings.Builder
	for _, name := range names {
		file, err := os.Open(filepath.Join(dir, name))
		if err != nil {
			return err
		}
		sum := sha256.New()
		_, err = io.Copy(sum, file)
		if err := errors.Join(err, file.Close()); err != nil {
			return err
		}
		fmt.Fprintf(&sums, "%x  %s\n", sum.Sum(nil), name)
	}
	return os.WriteFile(filepath.Join(dir, sumsFile), []byte(sums.String()), 0o644)
}

// written returns the names of this program's files in a folder, sorted.
func written(dir string) ([]string, error) {
	files, err := filepath.Glob(filepath.Join(dir, "waybill_v*"))
	if err != nil {
		return nil, err
	}
	for i := range files {
		files[i] = filepath.Base(files[i])
	}
	slices.Sort(files)
	return files, nil
}

// clean removes what an earlier run wrote to a folder.
func clean(dir string) error {
	names, err := written(dir)
	if err != nil {
		return err
	}
	for _, name := range append(names, sumsFile) {
		if err := os.Remove(filepath.Join(dir, name)); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	return nil
}

// create writes a file.
func create(name string, write func(w io.Writer) error) error {
	file, err := os.Create(name)
	if err != nil {
		return err
	}
	return errors.Join(write(file), file.Close())
}
