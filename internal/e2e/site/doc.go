// Package site builds the documentation's site, follows every link in it, and
// searches it in a browser.
package site
