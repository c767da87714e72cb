// Package demo runs package shop over an embedded JetStream server, with
// metrics.
package demo

import (
	"context"
	"errors"
	"net/http"

	"github.com/waybillhq/waybill/cmd/waybill/internal/telemetry"
	"github.com/waybillhq/waybill/demo/shop"
	"github.com/waybillhq/waybill/observe"
	"github.com/waybillhq/waybill/observe/otelobserve"
)

// Run runs the demo. See [shop.Run].
func Run(ctx context.Context, cfg shop.Config) (err error) {
	collected, err := telemetry.New()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, collected.Close(context.WithoutCancel(ctx))) }()
	observer, err := collected.Observer("waybill", "")
	if err != nil {
		return err
	}
	cfg.Line, cfg.Metrics = &line{}, metrics{observer, collected}
	return shop.Run(ctx, cfg)
}

// metrics implements [shop.Metrics].
type metrics struct {
	observer  *otelobserve.Observer
	collected *telemetry.Telemetry
}

func (m metrics) Hooks() observe.Hooks  { return m.observer.Hooks() }
func (m metrics) Handler() http.Handler { return m.collected.Handler() }
