package main

import (
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/hex"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	cdx "github.com/CycloneDX/cyclonedx-go"
	"github.com/santhosh-tekuri/jsonschema/v6"
)

// TestBOM: the bill of materials follows the schema of CycloneDX, names the
// binary by its hash, and lists exactly the modules of the binary.
func TestBOM(t *testing.T) {
	_, program := unpacked(t)
	dir, base := built(t)
	file := filepath.Join(dir, base+".cdx.json")
	checkSchema(t, file)
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	var bom cdx.BOM
	if err := cdx.NewBOMDecoder(f, cdx.BOMFileFormatJSON).Decode(&bom); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(program)
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(data)
	main := bom.Metadata.Component
	if main.Version != testVersion || main.Name != modulePrefix+"/cmd/waybill" || (*main.Hashes)[0].Value != hex.EncodeToString(sum[:]) {
		t.Errorf("the program is %+v, %+v", main, main.Hashes)
	}
	info, err := buildinfo.ReadFile(program)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"pkg:golang/std@" + strings.TrimPrefix(info.GoVersion, "go")}
	for _, dep := range info.Deps {
		version := dep.Version
		if strings.HasPrefix(dep.Path, modulePrefix) {
			version = testVersion
		}
		want = append(want, "pkg:golang/"+dep.Path+"@"+version)
	}
	var got []string
	for _, c := range *bom.Components {
		got = append(got, c.PackageURL)
		if ours := strings.HasPrefix(c.Name, modulePrefix); c.Hashes == nil && !ours && c.Name != "std" {
			t.Errorf("%s has no checksum", c.PackageURL)
		}
	}
	slices.Sort(want)
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("the components are\n%s\nand the modules\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	// What the image needs because it has no files.
	if !strings.Contains(strings.Join(got, "\n"), "pkg:golang/golang.org/x/crypto/x509roots/fallback@") {
		t.Error("the program has no authorities of its own")
	}
	if needs := (*bom.Dependencies)[0]; needs.Ref != main.BOMRef || len(*needs.Dependencies) != len(got) {
		t.Errorf("the dependencies of the program are %+v", needs)
	}
}

// checkSchema checks a file by the schemas that are part of the library.
func checkSchema(t *testing.T, file string) {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", "github.com/CycloneDX/cyclonedx-go").Output()
	if err != nil {
		t.Fatal(err)
	}
	folder := filepath.Join(strings.TrimSpace(string(out)), "schema")
	compiler := jsonschema.NewCompiler()
	read := func(file string) any {
		t.Helper()
		f, err := os.Open(file)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = f.Close() }()
		value, err := jsonschema.UnmarshalJSON(f)
		if err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		return value
	}
	const base = "http://cyclonedx.org/schema/"
	for id, name := range map[string]string{
		"bom-1.6.schema.json": "bom-1.6.schema.json", "spdx.schema.json": "spdx.schema.json", "jsf-0.82.schema.json": "jsf-0.82.schemax.json",
	} {
		if err := compiler.AddResource(base+id, read(filepath.Join(folder, name))); err != nil {
			t.Fatal(err)
		}
	}
	schema, err := compiler.Compile(base + "bom-1.6.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := schema.Validate(read(file)); err != nil {
		t.Error(err)
	}
}
