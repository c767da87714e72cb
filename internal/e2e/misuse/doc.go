// Package misuse contains programs that the compiler must reject, one in each
// folder of testdata, and a test that it does. A line that must not compile
// ends in a comment such as
//
//	box.Write(ctx, pool, ev) // refused: does not implement pgx.Tx
package misuse
