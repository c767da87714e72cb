// Package dashboard drives the pages of package dashboard with a browser.
package dashboard
