// Package publicid shows ids to the outside: a prefix that says what it is the id of, and a ULID in lower case, as in
// ord_01j9zt6vb2e4x8k3m5n7p9qrst. Inside, an id stays 16 bytes; outside, nobody can take an order's id for a customer's: neither the compiler
// nor the decoder lets it pass.
//
//	type Order struct{ … }
//	func (Order) PublicPrefix() string { return "ord" }
//
//	id := publicid.New[Order]()                    // publicid.ID[Order]
//	id, err := publicid.Parse[Order](r.PathValue("id"))
//
// An id has one text, and decoding is strict, so texts may be compared as bytes, in a database, too. A type that has a PublicChecksum method
// gets two more characters, by which any two mistyped characters, and any two that were swapped, are noticed before a query is made.
//
// # TypeID
//
// TypeID (github.com/jetify-com/typeid) looks alike and is not the same: it is prefix_ and a UUIDv7 in the same alphabet. Both are 128 bits that sort
// by time. Here they are a ULID, because that is what events have, and because all 80 bits after the time are random: a UUIDv7 spends six of
// them on its version and variant. So every id of this package without a checksum is, as text, a valid TypeID for those who check prefix and
// alphabet only, and not a UUIDv7 for those who look at the version bits.
package publicid
