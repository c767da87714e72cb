package settings

import (
	"strings"

	"github.com/spf13/pflag"
)

// flagValue holds the text of a flag; the loader parses it together with the
// other sources.
type flagValue struct{ text, unit string }

func (f *flagValue) String() string     { return f.text }
func (f *flagValue) Set(t string) error { f.text = t; return nil }
func (f *flagValue) Type() string       { return f.unit }

// annotation marks flags that are settings; its value is the name of the key.
const annotation = "waybill-setting"

// AddFlags adds a flag for every setting for which fits returns true.
func AddFlags(set *pflag.FlagSet, fits func(Key) bool) {
	for _, k := range Table() {
		if !fits(k) {
			continue
		}
		add(set, k.Name, k.Default, k.Unit, k.Help, k.Switch())
		if k.Secret() {
			add(set, k.FileName(), "", "file", "File with the value of --"+k.Flag(), false)
		}
	}
}

func add(set *pflag.FlagSet, name, def, unit, help string, toggle bool) {
	f := set.VarPF(&flagValue{def, unit}, flagOf(name), "", strings.ReplaceAll(help, "`", "'"))
	f.Annotations = map[string][]string{annotation: {name}}
	if toggle {
		f.NoOptDefVal = "true"
	}
}

// GivenFlags returns the settings that were given as flags.
func GivenFlags(set *pflag.FlagSet) map[string]string {
	given := make(map[string]string)
	set.Visit(func(f *pflag.Flag) {
		if name, ok := f.Annotations[annotation]; ok {
			given[name[0]] = f.Value.String()
		}
	})
	return given
}
