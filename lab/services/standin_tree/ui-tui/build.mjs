// The archive brings the interface built already: a build puts it where the agent looks for it.
import fs from 'node:fs';
import ms from 'ms';

const began = Date.now();
fs.mkdirSync('dist', { recursive: true });
fs.copyFileSync('src/entry.js', 'dist/entry.js');
console.log(`ui-tui: built in ${ms(Date.now() - began)}`);
