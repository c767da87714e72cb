package main

import (
	"archive/zip"
	"bytes"
	"io"
	"testing"
)

// TestZip: the archive for Windows has the files with their modes and one time,
// the same bytes each time.
func TestZip(t *testing.T) {
	entries := []entry{{"waybill/LICENSE", 0o644, []byte("license")}, {"waybill/waybill.exe", 0o755, []byte("program")}}
	var first, second bytes.Buffer
	for _, out := range []*bytes.Buffer{&first, &second} {
		if err := writeZip(out, entries, testTime); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(first.Bytes(), second.Bytes()) {
		t.Error("two archives of the same files differ")
	}
	r, err := zip.NewReader(bytes.NewReader(first.Bytes()), int64(first.Len()))
	if err != nil {
		t.Fatal(err)
	}
	if len(r.File) != len(entries) {
		t.Fatalf("%d files", len(r.File))
	}
	for i, f := range r.File {
		file, err := f.Open()
		if err != nil {
			t.Fatal(err)
		}
		data, err := io.ReadAll(file)
		if err != nil {
			t.Fatal(err)
		}
		if want := entries[i]; f.Name != want.name || int64(f.Mode().Perm()) != want.mode || !bytes.Equal(data, want.data) || !f.Modified.Equal(testTime) {
			t.Errorf("%s, %v, %v, %q", f.Name, f.Mode(), f.Modified, data)
		}
	}
}
