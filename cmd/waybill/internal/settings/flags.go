package settings

import (
	"strings"

	"github.com/spf13/pflag"
)

// flagValue keeps a flag's text; what it means is read later, together with the other sources.
type flagValue struct{ text, unit string }

func (f *flagValue) String() string     { return f.text }
func (f *flagValue) Set(t string) error { f.text = t; return nil }
func (f *flagValue) Type() string       { return f.unit }

// annotation marks the flags that are settings, with the key's name.
const annotation = "waybill-setting"

// AddFlags adds a flag for every setting that fits.
func AddFlags(set *pflag.FlagSet, fits func(Key) bool) {
	for _, k := range Table() {
		if !fits(k) {
			continue
		}
		add(set, k.Name, k.Default, k.Unit, k.Help, k.Switch())
		if k.Secret() {
			add(set, k.FileName(), "", "file", "A file with the value of --"+k.Flag()+" in it", false)
		}
	}
}

func add(set *pflag.FlagSet, name, usual, unit, help string, toggle bool) {
	f := set.VarPF(&flagValue{usual, unit}, flagOf(name), "", strings.ReplaceAll(help, "`", "'"))
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
