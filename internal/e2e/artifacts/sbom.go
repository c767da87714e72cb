package main

import (
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"io"
	"net/url"
	"os"
	"runtime/debug"
	"strings"
	"time"

	cdx "github.com/CycloneDX/cyclonedx-go"
	"github.com/google/uuid"
)

// modulePrefix is the path of the modules of this repository.
const modulePrefix = "github.com/waybillhq/waybill"

// repository is where the source is published.
const repository = "https://github.com/waybillhq/waybill"

// writeBOM writes the bill of materials of a binary in CycloneDX: the modules
// that its build information names.
func (s *source) writeBOM(file string, p platform, binary string) error {
	info, err := buildinfo.ReadFile(binary)
	if err != nil {
		return err
	}
	data, err := os.ReadFile(binary)
	if err != nil {
		return err
	}
	sum := sha256.Sum256(data)
	bom := s.bom(info, p, sum)
	return create(file, func(w io.Writer) error {
		return cdx.NewBOMEncoder(w, cdx.BOMFileFormatJSON).SetPretty(true).EncodeVersion(bom, cdx.SpecVersion1_6)
	})
}

// bom returns the bill of materials of a binary. Its serial number follows from
// the binary, so that it is the same for the same build.
func (s *source) bom(info *debug.BuildInfo, p platform, sum [sha256.Size]byte) *cdx.BOM {
	main := library(info.Main.Path, s.version, "")
	main.Type = cdx.ComponentTypeApplication
	main.Hashes = &[]cdx.Hash{{Algorithm: cdx.HashAlgoSHA256, Value: hex.EncodeToString(sum[:])}}
	main.Licenses = &cdx.Licenses{{License: &cdx.License{ID: "Apache-2.0"}}}
	main.ExternalReferences = &[]cdx.ExternalReference{{Type: cdx.ERTypeVCS, URL: repository}}
	main.Properties = &[]cdx.Property{
		{Name: "waybill:commit", Value: s.commit},
		{Name: "waybill:platform", Value: p.String()},
		{Name: "waybill:go", Value: info.GoVersion},
	}

	std := library("std", strings.TrimPrefix(info.GoVersion, "go"), "")
	components := []cdx.Component{std}
	needs := []string{std.BOMRef}
	for _, dep := range info.Deps {
		version, sum := dep.Version, dep.Sum
		modulePath := dep.Path
		if ours := modulePath == modulePrefix || strings.HasPrefix(modulePath, modulePrefix+"/"); ours {
			version, sum = s.version, "" // built from this checkout
		} else if dep.Replace != nil {
			modulePath, version, sum = dep.Replace.Path, dep.Replace.Version, dep.Replace.Sum
		}
		c := library(modulePath, version, sum)
		components, needs = append(components, c), append(needs, c.BOMRef)
	}

	bom := cdx.NewBOM()
	bom.SerialNumber = "urn:uuid:" + uuid.NewSHA1(uuid.NameSpaceURL, append([]byte(main.PackageURL+"#"), sum[:]...)).String()
	bom.Metadata = &cdx.Metadata{Timestamp: s.time.Format(time.RFC3339), Component: &main}
	bom.Components = &components
	bom.Dependencies = &[]cdx.Dependency{{Ref: main.BOMRef, Dependencies: &needs}}
	return bom
}

// library returns the component of a module. sum is its line in go.sum.
func library(modulePath, version, sum string) cdx.Component {
	purl := fmt.Sprintf("pkg:golang/%s@%s", modulePath, url.PathEscape(version))
	c := cdx.Component{
		BOMRef: purl, Type: cdx.ComponentTypeLibrary, Name: modulePath, Version: version, PackageURL: purl, Scope: cdx.ScopeRequired,
	}
	if raw, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(sum, "h1:")); err == nil && len(raw) == sha256.Size {
		c.Hashes = &[]cdx.Hash{{Algorithm: cdx.HashAlgoSHA256, Value: hex.EncodeToString(raw)}}
	}
	return c
}
