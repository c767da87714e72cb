// Package catalog validates catalogs of event types: the document against the
// schema of AsyncAPI, the schemas against JSON Schema, and what encoding/json
// writes against the schemas.
package catalog
