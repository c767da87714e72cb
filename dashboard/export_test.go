package dashboard

// SearchRows sets the number of delivered events that a page searches.
func (d *Dashboard) SearchRows(n int) { d.searchRows = n }
