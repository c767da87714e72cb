package repocheck_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"strings"
	"testing"

	"github.com/waybillhq/waybill/internal/docblock"
)

// TestLoggersAreNotSilentByDefault: every library struct with a logger
// documents slog.Default as the default, its package uses it, and no package
// discards its logs.
func TestLoggersAreNotSilentByDefault(t *testing.T) {
	root, configs := docblock.Root(t), 0
	defaults, wanted := map[string]bool{}, map[string]string{}
	for _, f := range parseImports(t) {
		top, _, _ := strings.Cut(f.path, "/")
		if f.test || top == "cmd" || top == "demo" || top == "internal" {
			continue
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), filepath.Join(root, f.path), nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(parsed, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.SelectorExpr:
				switch from, ok := n.X.(*ast.Ident); {
				case !ok:
				case from.Name == "slog" && n.Sel.Name == "Default":
					defaults[f.folder()] = true
				case from.Name == "slog" && n.Sel.Name == "DiscardHandler", from.Name == "log" && n.Sel.Name == "DefaultNopLogger":
					t.Errorf("%s: %s.%s discards logs", f.path, from.Name, n.Sel.Name)
				}
			case *ast.StructType:
				for _, field := range n.Fields.List {
					if len(field.Names) != 1 || field.Names[0].Name != "Logger" {
						continue
					}
					configs++
					wanted[f.folder()] = f.path
					if !strings.Contains(strings.Join(strings.Fields(field.Doc.Text()), " "), "Defaults to [slog.Default]") {
						t.Errorf("%s: the field Logger does not say that it defaults to slog.Default", f.path)
					}
				}
			}
			return true
		})
	}
	for folder, file := range wanted {
		if !defaults[folder] {
			t.Errorf("%s: the package does not use slog.Default", file)
		}
	}
	if configs < 13 {
		t.Errorf("%d structs with a logger were found", configs)
	}
}
