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

// hookTypes are the structs whose function fields are hooks.
var hookTypes = map[string]string{"observe/observe.go": "Hooks", "outbox/write.go": "Hook"}

// TestHooksHaveOneArgument: a hook takes one struct, after an optional context,
// because a parameter cannot be added to a function type later. The struct has
// the name of the hook, with the suffix Info.
func TestHooksHaveOneArgument(t *testing.T) {
	root, hooks := docblock.Root(t), 0
	for file, name := range hookTypes {
		parsed, err := parser.ParseFile(token.NewFileSet(), filepath.Join(root, file), nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(parsed, func(n ast.Node) bool {
			spec, ok := n.(*ast.TypeSpec)
			if !ok || spec.Name.Name != name {
				return true
			}
			for _, field := range spec.Type.(*ast.StructType).Fields.List {
				hooks++
				if problem := wrongHook(field.Names[0].Name, field.Type.(*ast.FuncType)); problem != "" {
					t.Errorf("%s: %s.%s: %s", file, name, field.Names[0].Name, problem)
				}
			}
			return false
		})
	}
	if hooks < 34 {
		t.Errorf("%d hooks were found", hooks)
	}
}

// wrongHook returns the problem with a hook's arguments.
func wrongHook(name string, fn *ast.FuncType) string {
	params := fn.Params.List
	if len(params) > 0 && isSelector(params[0].Type, "context", "Context") {
		params = params[1:]
	}
	if len(params) != 1 || len(params[0].Names) > 1 {
		return "want one argument beside the context"
	}
	if id, ok := params[0].Type.(*ast.Ident); !ok || id.Name != name+"Info" {
		return "want an argument of type " + name + "Info"
	}
	if fn.Results == nil {
		return ""
	}
	for _, result := range fn.Results.List {
		if later, ok := result.Type.(*ast.FuncType); ok {
			return wrongHook(name+"Done", later)
		}
	}
	return ""
}

func isSelector(e ast.Expr, pkg, name string) bool {
	s, ok := e.(*ast.SelectorExpr)
	if !ok {
		return false
	}
	from, ok := s.X.(*ast.Ident)
	return ok && from.Name == pkg && s.Sel.Name == name
}

func TestWrongHook(t *testing.T) {
	for text, want := range map[string]string{
		"func(info ReadInfo)":                                       "",
		"func(ctx context.Context, info ReadInfo) error":            "",
		"func(ReadInfo) (context.Context, func(info ReadDoneInfo))": "",
		"func(n int)":                        "type ReadInfo",
		"func(info *ReadInfo)":               "type ReadInfo",
		"func(info WriteInfo)":               "type ReadInfo",
		"func(info ReadInfo, n int)":         "one argument",
		"func(a, b ReadInfo)":                "one argument",
		"func(ctx context.Context)":          "one argument",
		"func(info ReadInfo) func([]error)":  "type ReadDoneInfo",
		"func()":                             "one argument",
		"func(info ReadInfo) func(ReadInfo)": "type ReadDoneInfo",
	} {
		expr, err := parser.ParseExpr(text)
		if err != nil {
			t.Fatal(err)
		}
		got := wrongHook("Read", expr.(*ast.FuncType))
		if (got == "") != (want == "") || !strings.Contains(got, want) {
			t.Errorf("%s: %q, want %q", text, got, want)
		}
	}
}
