// Package routers shows, in its tests, how package httpkey is used with routers that are not net/http's own: chi, gin and echo. It is a module of
// its own, so that nobody else gets their dependencies.
package routers
