// Package jcs writes JSON in the canonical form of RFC 8785, so that texts of equal meaning become equal bytes.
//
// It is strict: text that is not I-JSON (invalid UTF-8, a lone surrogate, a name twice in one object), data after the value, and more than
// [MaxDepth] levels are errors, never repaired. It takes linear time for any input, up to the sorting of names.
//
// [Canonical] rounds numbers to float64, as the RFC requires; then 9007199254740993 and 9007199254740992 become the same text. Where two
// values must never be taken for one, as in a fingerprint, [Exact] refuses such numbers.
package jcs
