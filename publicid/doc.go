// Package publicid makes ids for public use: a prefix that names the type, and
// a ULID in lower case, as in ord_01j9zt6vb2e4x8k3m5n7p9qrst. Inside a service
// an id stays 16 bytes. An order's id cannot be confused with a customer's: the
// compiler and the decoder both reject it.
//
//	type Order struct{ … }
//	func (Order) PublicPrefix() string { return "ord" }
//
//	id := publicid.New[Order]()                    // publicid.ID[Order]
//	id, err := publicid.Parse[Order](r.PathValue("id"))
//
// An id has one text, and decoding is strict, so texts may be compared as
// bytes, also in a database. A type with a PublicChecksum method gets two more
// characters, which detect any two mistyped or swapped characters before a
// query runs.
//
// # TypeID
//
// TypeID (github.com/jetify-com/typeid) looks similar but differs: it is
// prefix_ and a UUIDv7 in the same alphabet. Both are 128 bits that sort by
// time. This package uses a ULID, because events have ULIDs, and because all 80
// bits after the time are random: a UUIDv7 spends six of them on its version
// and variant. An id of this package without a checksum is therefore a valid
// TypeID for decoders that check only the prefix and the alphabet, and not a
// UUIDv7 for decoders that check the version bits.
package publicid
