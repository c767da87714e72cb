// Package grpckey makes unary gRPC methods run once per key: a repeat of a
// request gets the first answer.
//
//	once, err := grpckey.New(keys, grpckey.Config{
//		Scope:   tenantOf,
//		Methods: []string{shop.Orders_Create_FullMethodName},
//	})
//	grpc.NewServer(
//		grpc.ChainUnaryInterceptor(authenticate, once.Unary),
//		grpc.ChainStreamInterceptor(once.Stream),
//	)
//
// The key is in the metadata, as idempotency-key, or in the request, in a
// string field request_id (AIP-155). A call without a key, with an invalid key,
// or with a key that was used for another request ends with INVALID_ARGUMENT. A
// call whose key is in use by another call ends with ABORTED and a RetryInfo.
// If the store is unavailable, the call ends with UNAVAILABLE.
package grpckey
