// Package jcs writes JSON in the canonical form of RFC 8785, so that texts with
// equal meaning become equal bytes.
//
// It is strict: text that is not I-JSON (invalid UTF-8, a lone surrogate, a
// duplicate name in an object), data after the value, and more than [MaxDepth]
// levels are errors and never repaired. It takes linear time for any input,
// except for the sorting of names.
//
// [Canonical] rounds numbers to float64, as the RFC requires; then
// 9007199254740993 and 9007199254740992 become the same text. [Exact] refuses
// such numbers; use it where two values must never be mistaken for each other,
// as in a fingerprint.
package jcs
