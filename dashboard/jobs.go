package dashboard

import "github.com/waybillhq/waybill/store"

// jobsView is the data of the page of jobs.
type jobsView struct{ Jobs []jobRow }

type jobRow struct {
	store.JobRecord
	// State is failing, running, found or ok.
	State string
}

func (d *Dashboard) jobs(p *page) (any, error) {
	p.Title = "Reconciliation jobs"
	records, err := d.cfg.Jobs.List(p.ctx)
	if err != nil {
		return nil, err
	}
	v := &jobsView{}
	for _, r := range records {
		row := jobRow{JobRecord: r, State: "ok"}
		switch {
		case r.LeaseUntil.After(r.Now):
			row.State = "running"
		case r.LastError != "" || r.Failed > 0:
			row.State = "failing"
		case r.Found > 0:
			row.State = "found"
		}
		v.Jobs = append(v.Jobs, row)
	}
	return v, nil
}
