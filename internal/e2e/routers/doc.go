// Package routers shows, in its tests, how package httpkey is used with
// third-party routers: chi, gin and echo. It is a module of its own, so that no
// other module gets their dependencies.
package routers
