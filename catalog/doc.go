// Package catalog describes the event types of a service for its consumers: an
// AsyncAPI 3.0 document with a JSON Schema of each payload, derived from the Go
// types of the definitions.
//
//	c, err := catalog.New(catalog.Config{Title: "shop"}, OrderPlaced, OrderShipped)
//	…
//	err = c.Write(file)
//
// Commit the file. [Compare] finds the changes that break consumers; waybill
// events check runs it on two files.
//
// The schemas describe what encoding/json writes: a field without omitempty or
// omitzero is required, and a nil pointer, slice or map is null.
package catalog
