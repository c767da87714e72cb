package redisbroker

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/waybillhq/waybill/broker/driver"
)

// Parameters of URLs that go-redis does not have.
const (
	paramSentinel         = "sentinel"          // the name of the primary at the sentinels
	paramSentinelUsername = "sentinel_username" // the account at the sentinels
	paramSentinelPassword = "sentinel_password"
	paramCluster          = "cluster" // the hosts are nodes of a Redis Cluster
)

// The default ports.
const (
	serverPort   = "6379"
	sentinelPort = "26379"
)

// Options returns the client options for a URL, for [redis.NewUniversalClient].
// In addition to go-redis's parameters, the URL may have sentinel=NAME: its
// hosts are sentinels, separated by commas, and NAME is their name of the
// primary. User name and password are those of the servers; sentinel_username
// and sentinel_password are those of the sentinels. With cluster=true the hosts
// are nodes of a Redis Cluster. rediss:// URLs may have ca, cert and key, which
// name PEM files, and insecure=true, which accepts any certificate. Errors may
// show the URL.
func Options(text string) (*redis.UniversalOptions, error) {
	bare, hosts := splitHosts(text)
	u, err := url.Parse(bare)
	if err != nil {
		return nil, err
	}
	query := u.Query()
	secure, err := driver.TakeTLS(query, nil)
	if err != nil {
		return nil, err
	}
	out := &redis.UniversalOptions{MasterName: query.Get(paramSentinel), SentinelUsername: query.Get(paramSentinelUsername), SentinelPassword: query.Get(paramSentinelPassword)}
	if query.Has(paramSentinel) && out.MasterName == "" {
		return nil, errors.New("parameter sentinel: want the name of the primary")
	}
	if out.IsClusterMode, err = isCluster(query.Get(paramCluster)); err != nil {
		return nil, err
	}
	for _, name := range []string{paramSentinel, paramSentinelUsername, paramSentinelPassword, paramCluster} {
		query.Del(name)
	}
	u.RawQuery = query.Encode()
	opts, err := redis.ParseURL(u.String())
	switch {
	case err != nil:
		return nil, err
	case secure != nil && opts.TLSConfig == nil:
		return nil, errors.New("parameters ca, cert, key and insecure require rediss://")
	case secure != nil:
		secure.ServerName = opts.TLSConfig.ServerName
		opts.TLSConfig = secure
	}
	copyOptions(out, opts)
	if opts.Network == "unix" {
		return overSocket(out, opts.Addr)
	}
	port, err := portOf(out, opts, hosts)
	if err != nil {
		return nil, err
	}
	if out.Addrs, err = addresses(hosts, port); err != nil {
		return nil, err
	}
	if (out.MasterName != "" || out.IsClusterMode) && opts.TLSConfig != nil {
		// The client takes the name of each host that it connects to.
		opts.TLSConfig.ServerName = ""
	}
	return out, nil
}

// overSocket returns the options for a Unix socket, whose path is the address.
func overSocket(out *redis.UniversalOptions, path string) (*redis.UniversalOptions, error) {
	if out.MasterName != "" || out.SentinelUsername != "" || out.SentinelPassword != "" {
		return nil, errors.New("a Unix socket has no sentinels")
	}
	if out.IsClusterMode {
		return nil, errors.New("a Unix socket has no cluster")
	}
	out.Addrs = []string{path}
	return out, nil
}

func isCluster(value string) (bool, error) {
	switch value {
	case "", "false":
		return false, nil
	case "true":
		return true, nil
	}
	return false, errors.New("parameter cluster: want true or false")
}

// portOf returns the default port of the hosts, or an error if the parameters
// contradict each other.
func portOf(out *redis.UniversalOptions, opts *redis.Options, hosts []string) (string, error) {
	switch {
	case out.MasterName != "" && out.IsClusterMode:
		return "", errors.New("parameters sentinel and cluster exclude each other")
	case out.IsClusterMode && opts.DB != 0:
		return "", errors.New("a Redis Cluster has no database but 0")
	case out.MasterName != "":
		return sentinelPort, nil
	case len(hosts) > 1 && !out.IsClusterMode:
		return "", errors.New("several hosts require the parameter sentinel or cluster")
	case out.SentinelUsername != "" || out.SentinelPassword != "":
		return "", errors.New("parameters sentinel_username and sentinel_password require the parameter sentinel")
	}
	return serverPort, nil
}

// splitHosts returns a URL with its first host, and all hosts. net/url supports
// only one.
func splitHosts(text string) (string, []string) {
	scheme, rest, ok := strings.Cut(text, "://")
	if !ok {
		return text, nil
	}
	authority, tail := rest, ""
	if i := strings.IndexAny(rest, "/?#"); i >= 0 {
		authority, tail = rest[:i], rest[i:]
	}
	user := ""
	if i := strings.LastIndexByte(authority, '@'); i >= 0 {
		user, authority = authority[:i+1], authority[i+1:]
	}
	hosts := strings.Split(authority, ",")
	return scheme + "://" + user + hosts[0] + tail, hosts
}

// addresses returns hosts with their ports.
func addresses(hosts []string, port string) ([]string, error) {
	var out []string
	for _, host := range hosts {
		u, err := url.Parse("redis://" + host)
		if err != nil || u.Host != host {
			return nil, fmt.Errorf("host %q is malformed", host)
		}
		name, own := u.Hostname(), u.Port()
		if name == "" {
			name = "localhost"
		}
		if own == "" {
			own = port
		}
		out = append(out, net.JoinHostPort(name, own))
	}
	return out, nil
}

// copyOptions copies what a URL can set.
func copyOptions(to *redis.UniversalOptions, from *redis.Options) {
	to.DB, to.Username, to.Password, to.TLSConfig = from.DB, from.Username, from.Password, from.TLSConfig
	to.Protocol, to.ClientName = from.Protocol, from.ClientName
	to.MaxRetries, to.MinRetryBackoff, to.MaxRetryBackoff = from.MaxRetries, from.MinRetryBackoff, from.MaxRetryBackoff
	to.DialTimeout, to.ReadTimeout, to.WriteTimeout = from.DialTimeout, from.ReadTimeout, from.WriteTimeout
	to.PoolFIFO, to.PoolSize, to.PoolTimeout = from.PoolFIFO, from.PoolSize, from.PoolTimeout
	to.MinIdleConns, to.MaxIdleConns, to.MaxActiveConns = from.MinIdleConns, from.MaxIdleConns, from.MaxActiveConns
	to.MaxConcurrentDials = from.MaxConcurrentDials
	to.PipelinePoolSize, to.PipelineReadBufferSize, to.PipelineWriteBufferSize = from.PipelinePoolSize, from.PipelineReadBufferSize, from.PipelineWriteBufferSize
	to.ConnMaxIdleTime, to.ConnMaxLifetime, to.ConnMaxLifetimeJitter = from.ConnMaxIdleTime, from.ConnMaxLifetime, from.ConnMaxLifetimeJitter
}
