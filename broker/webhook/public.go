package webhook

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"
	"time"
)

// ErrNotPublic reports that an endpoint's name resolves to an address that
// [Config.PublicOnly] and [PublicDialer] do not connect to.
var ErrNotPublic = errors.New("webhook: the address is not public")

// PublicDialer returns a dialer that connects to public addresses only, for
// clients that post to addresses chosen by customers. The dialer rejects
// loopback, private, link-local (with the metadata services of clouds), shared,
// multicast and reserved addresses with [ErrNotPublic]. The dialer checks the
// address that it connects to, after name resolution, so a name that resolves
// to changing addresses cannot bypass the check. A client that uses the dialer
// must not use a proxy, which would connect in its place.
func PublicDialer() *net.Dialer {
	return &net.Dialer{
		Timeout: 30 * time.Second, KeepAlive: 30 * time.Second,
		Control: func(_, address string, _ syscall.RawConn) error {
			at, err := netip.ParseAddrPort(address)
			if err != nil || !public(at.Addr()) {
				return fmt.Errorf("%w: %s", ErrNotPublic, address)
			}
			return nil
		},
	}
}

// notPublic lists prefixes that [netip.Addr] considers global and that are not:
// RFC 6890 and its successors.
var notPublic = []netip.Prefix{ //nolint:gochecknoglobals // never changed
	netip.MustParsePrefix("0.0.0.0/8"),
	netip.MustParsePrefix("100.64.0.0/10"),    // carrier-grade NAT; Alibaba's metadata service
	netip.MustParsePrefix("168.63.129.16/32"), // Azure's internal services
	netip.MustParsePrefix("192.0.0.0/24"),     // Oracle's metadata service
	netip.MustParsePrefix("192.0.2.0/24"),
	netip.MustParsePrefix("192.88.99.0/24"),
	netip.MustParsePrefix("198.18.0.0/15"),
	netip.MustParsePrefix("198.51.100.0/24"),
	netip.MustParsePrefix("203.0.113.0/24"),
	netip.MustParsePrefix("240.0.0.0/4"),
	netip.MustParsePrefix("2001::/23"), // Teredo and others that embed an IPv4 address
	netip.MustParsePrefix("2001:db8::/32"),
	netip.MustParsePrefix("2002::/16"), // 6to4
	netip.MustParsePrefix("3fff::/20"),
}

var (
	global6 = netip.MustParsePrefix("2000::/3")     //nolint:gochecknoglobals // never changed
	nat64   = netip.MustParsePrefix("64:ff9b::/96") //nolint:gochecknoglobals // never changed
)

// public reports whether an address belongs to the Internet.
func public(a netip.Addr) bool {
	a = a.Unmap()
	// In a network without IPv4, a translator connects to the address in the
	// last 32 bits.
	if nat64.Contains(a.WithZone("")) {
		bytes := a.As16()
		return public(netip.AddrFrom4([4]byte(bytes[12:])))
	}
	if !a.IsGlobalUnicast() || a.IsPrivate() || a.Zone() != "" || a.Is6() && !global6.Contains(a) {
		return false
	}
	for _, p := range notPublic {
		if p.Contains(a) {
			return false
		}
	}
	return true
}
