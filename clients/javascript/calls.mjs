// Calls as `cargo xtask examples clients-javascript` makes them: CALLS payments to URL; prints each answer on a line.

import { keepsKey } from './onlyonce-client.mjs';

const fetchOnce = keepsKey({ pauseFirst: 10 });
for (let number = 0; number < Number(process.env.CALLS); number += 1) {
  const answer = await fetchOnce(process.env.URL, {
    method: 'POST',
    headers: { Authorization: 'Bearer ann', 'Content-Type': 'application/json' },
    body: JSON.stringify({ amount: 1200 + number }),
  });
  console.log(answer.status, (await answer.text()).trim());
}
