// Draw NAME.d2 as NAME.svg: node draw.mjs FOLDER NAME... (scripts/diagrams.py calls it)
import {createHash} from 'node:crypto';
import {readFileSync, writeFileSync} from 'node:fs';
import {D2} from '@terrastruct/d2';

const [to, ...names] = process.argv.slice(2);
const d2 = new D2();
for (const name of names) {
  const source = readFileSync(`${name}.d2`);
  const drawn = await d2.compile(source.toString(), {layout: 'elk', themeID: 0, darkThemeID: 200, pad: 12});
  const svg = await d2.render(drawn.diagram, {...drawn.renderOptions, noXMLTag: true, salt: name});
  const sum = createHash('sha256').update(source).digest('hex');
  writeFileSync(`${to}/${name}.svg`, `${svg}\n<!-- of docs/diagrams/${name}.d2, sha256 ${sum} -->\n`);
}
process.exit(0);
