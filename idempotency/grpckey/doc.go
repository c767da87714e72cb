// Package grpckey makes unary gRPC methods run once per key: a repeat of a request gets the first answer.
//
//	once, err := grpckey.New(keys, grpckey.Config{Scope: tenantOf, Methods: []string{shop.Orders_Create_FullMethodName}})
//	grpc.NewServer(grpc.ChainUnaryInterceptor(authenticate, once.Unary), grpc.ChainStreamInterceptor(once.Stream))
//
// The key is in the metadata, as idempotency-key, or in the request, in a string field request_id (AIP-155). Without a key, with a bad one, and
// with one that was used for another request, a call ends with INVALID_ARGUMENT; while another one with the same key is under way, with
// ABORTED and a RetryInfo; if the store is down, with UNAVAILABLE.
package grpckey
