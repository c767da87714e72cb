package repocheck_test

import (
	"go/ast"
	"go/doc"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/waybillhq/waybill/internal/docblock"
)

// The limits keep the API that users see small: what only authors of stores and
// brokers need belongs to the packages driver.
const (
	maxStoreNames   = 40 // exported names of package store, constants included
	maxStoreMethods = 10 // methods of a Store
)

// TestSurface checks the size of the API that users of stores see.
func TestSurface(t *testing.T) {
	if names := exported(t, "store"); len(names) > maxStoreNames {
		t.Errorf("package store exports %d names, want at most %d: %s", len(names), maxStoreNames, strings.Join(names, " "))
	}
	stores := 0
	for _, folder := range []string{"store/memstore", "store/pgstore", "store/mysqlstore", "store/sqlitestore"} {
		for _, typ := range packageIn(t, folder).Types {
			if typ.Name != "Store" && typ.Name != "SQLStore" {
				continue
			}
			stores++
			if n := len(typ.Methods); n > maxStoreMethods {
				t.Errorf("%s.%s has %d methods, want at most %d", folder, typ.Name, n, maxStoreMethods)
			}
		}
	}
	if stores != 5 {
		t.Errorf("%d stores were found, want 5", stores)
	}
}

// TestExportedNamesAreDocumented checks all packages that users can import.
func TestExportedNamesAreDocumented(t *testing.T) {
	root := docblock.Root(t)
	checked := 0
	err := filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() {
			return err
		}
		base := d.Name()
		if name != root && (strings.HasPrefix(base, ".") || base == "testdata" || base == "internal" || base == "cmd") {
			return filepath.SkipDir
		}
		rel, err := filepath.Rel(root, name)
		if err != nil {
			return err
		}
		p := packageIn(t, rel)
		if p == nil || p.Name == "main" {
			return nil
		}
		checked++
		for _, bare := range undocumented(p) {
			t.Errorf("%s: %s has no documentation", rel, bare)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if checked < 25 {
		t.Errorf("only %d packages were checked", checked)
	}
}

// packageIn returns the documentation of the package in a folder, nil if the
// folder has no Go files.
func packageIn(t *testing.T, folder string) *doc.Package {
	t.Helper()
	dir := filepath.Join(docblock.Root(t), filepath.FromSlash(folder))
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	fset := token.NewFileSet()
	var files []*ast.File
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), ".go") || strings.HasSuffix(e.Name(), "_test.go") {
			continue
		}
		f, err := parser.ParseFile(fset, filepath.Join(dir, e.Name()), nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, f)
	}
	if len(files) == 0 {
		return nil
	}
	p, err := doc.NewFromFiles(fset, files, module+"/"+folder)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// exported returns the exported names of a package, without methods.
func exported(t *testing.T, folder string) []string {
	t.Helper()
	p := packageIn(t, folder)
	var names []string
	values := func(list []*doc.Value) {
		for _, v := range list {
			for _, name := range v.Names {
				if token.IsExported(name) {
					names = append(names, name)
				}
			}
		}
	}
	values(p.Consts)
	values(p.Vars)
	for _, f := range p.Funcs {
		names = append(names, f.Name)
	}
	for _, typ := range p.Types {
		names = append(names, typ.Name)
		values(typ.Consts)
		values(typ.Vars)
		for _, f := range typ.Funcs {
			names = append(names, f.Name)
		}
	}
	slices.Sort(names)
	return names
}

// undocumented returns the exported names of a package without a comment. A
// group of values needs one comment, or one for each value.
func undocumented(p *doc.Package) []string {
	var bare []string
	values := func(list []*doc.Value) {
		for _, v := range list {
			if v.Doc != "" {
				continue
			}
			for _, spec := range v.Decl.Specs {
				if s, ok := spec.(*ast.ValueSpec); ok && s.Doc == nil && s.Comment == nil && s.Names[0].IsExported() {
					bare = append(bare, s.Names[0].Name)
				}
			}
		}
	}
	funcs := func(owner string, list []*doc.Func) {
		for _, f := range list {
			// Methods of well-known interfaces need no words.
			wellKnown := slices.Contains([]string{"Error", "Unwrap", "Is", "As", "String", "MarshalText", "UnmarshalText", "MarshalJSON", "UnmarshalJSON", "LogValue"}, f.Name)
			if f.Doc == "" && (owner == "" || !wellKnown) {
				bare = append(bare, owner+f.Name)
			}
		}
	}
	if p.Doc == "" {
		bare = append(bare, "package "+p.Name)
	}
	values(p.Consts)
	values(p.Vars)
	funcs("", p.Funcs)
	for _, typ := range p.Types {
		if typ.Doc == "" {
			bare = append(bare, typ.Name)
		}
		values(typ.Consts)
		values(typ.Vars)
		funcs("", typ.Funcs)
		funcs(typ.Name+".", typ.Methods)
	}
	return bare
}
