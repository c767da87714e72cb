package mutants

import (
	"go/ast"
	"go/parser"
	"go/scanner"
	"go/token"
	"go/types"
	"path"
	"strings"
)

// word is a token of Go code with its position in the text.
type word struct {
	tok      token.Token
	text     string
	from, to int
}

// words returns the tokens of Go code, without comments and without the
// semicolons that line ends stand for. It returns none for text that is cut
// inside a literal, as lines of an SQL statement are.
func words(text string) []word {
	var s scanner.Scanner
	set := token.NewFileSet()
	file := set.AddFile("", set.Base(), len(text))
	s.Init(file, []byte(text), nil, 0)
	var out []word
	for {
		pos, tok, lit := s.Scan()
		if tok == token.EOF && s.ErrorCount == 0 {
			return out
		}
		if tok == token.EOF {
			return nil
		}
		if tok == token.SEMICOLON && lit != ";" {
			continue
		}
		if !tok.IsLiteral() && tok != token.ILLEGAL {
			lit = tok.String()
		}
		from := file.Offset(pos)
		out = append(out, word{tok: tok, text: lit, from: from, to: from + len(lit)})
	}
}

// place is where a hunk applies, with the names that the file has for the
// identifiers of the hunk.
type place struct {
	from, to int
	names    map[string]string
	same     int // identifiers that are the same in both
}

// matchAt reports whether the pattern matches at the beginning of the words:
// all is equal but identifiers, and one identifier of the pattern stands for
// one identifier of the words.
func matchAt(pattern, in []word) (place, bool) {
	if len(in) < len(pattern) {
		return place{}, false
	}
	p := place{from: in[0].from, to: in[len(pattern)-1].to, names: make(map[string]string)}
	back := make(map[string]string)
	for i, w := range pattern {
		switch {
		case w.tok != in[i].tok:
			return place{}, false
		case w.tok != token.IDENT || types.Universe.Lookup(w.text) != nil:
			if w.text != in[i].text {
				return place{}, false
			}
			continue
		}
		name, known := p.names[w.text]
		old, taken := back[in[i].text]
		if known && name != in[i].text || taken && old != w.text {
			return place{}, false
		}
		p.names[w.text], back[in[i].text] = in[i].text, w.text
		if w.text == in[i].text {
			p.same++
		}
	}
	return p, true
}

// find returns the place in Go code where renamed code matches a hunk best. It
// reports false if there is no such place, or more than one.
func find(old string, in []word) (best place, ok bool) {
	pattern := words(old)
	if len(pattern) == 0 {
		return place{}, false
	}
	best.same = -1
	for i := range in {
		p, matches := matchAt(pattern, in[i:])
		switch {
		case !matches || p.same < best.same:
		case p.same == best.same:
			ok = false
		default:
			best, ok = p, true
		}
	}
	return best, ok
}

// rename replaces identifiers of Go code.
func rename(text string, names map[string]string) string {
	var out strings.Builder
	at := 0
	for _, w := range words(text) {
		if name, ok := names[w.text]; ok && w.tok == token.IDENT {
			out.WriteString(text[at:w.from])
			out.WriteString(name)
			at = w.to
		}
	}
	out.WriteString(text[at:])
	return out.String()
}

// symbolRange returns where a declaration of a Go file begins and ends: a
// function, "(Type).method" or "(*Type).method", a type, a variable or a
// constant. It reports false if the file has no such declaration.
func symbolRange(file, text, symbol string) (from, to int, ok bool) {
	set := token.NewFileSet()
	f, err := parser.ParseFile(set, path.Base(file), text, parser.SkipObjectResolution)
	if err != nil {
		return 0, 0, false
	}
	for _, d := range f.Decls {
		for _, name := range declared(d) {
			if name == symbol {
				return set.Position(d.Pos()).Offset, set.Position(d.End()).Offset, true
			}
		}
	}
	return 0, 0, false
}

// declared returns the symbols of a declaration.
func declared(d ast.Decl) []string {
	switch d := d.(type) {
	case *ast.FuncDecl:
		return []string{receiver(d) + d.Name.Name}
	case *ast.GenDecl:
		var names []string
		for _, s := range d.Specs {
			switch s := s.(type) {
			case *ast.TypeSpec:
				names = append(names, s.Name.Name)
			case *ast.ValueSpec:
				for _, n := range s.Names {
					names = append(names, n.Name)
				}
			}
		}
		return names
	}
	return nil
}

// receiver returns the receiver of a method, as in "(*Type).", or "".
func receiver(d *ast.FuncDecl) string {
	if d.Recv == nil || len(d.Recv.List) == 0 {
		return ""
	}
	typ, star := d.Recv.List[0].Type, ""
	if s, ok := typ.(*ast.StarExpr); ok {
		typ, star = s.X, "*"
	}
	switch x := typ.(type) {
	case *ast.IndexExpr:
		typ = x.X
	case *ast.IndexListExpr:
		typ = x.X
	}
	if id, ok := typ.(*ast.Ident); ok {
		return "(" + star + id.Name + ")."
	}
	return ""
}
