// A client that keeps its key, around fetch. See README.md beside it.

const KEYED = new Set(['POST', 'PATCH', 'PUT', 'DELETE']);
// Where an answer does not say whether it may be tried again. The key makes each of these safe.
const AGAIN = new Set([429, 500, 502, 503, 504]);
const AGAIN_IF_TOLD_WHEN = new Set([409, 425]);

/**
 * fetch that makes the key before the first try, and sends it with every try of the same request.
 *
 * save(url, init, key) is called before the first try, to keep the key where it survives a restart. After one, send the request
 * again with the saved key in its header: it is kept.
 */
export function keepsKey(options = {}) {
  const {
    header = 'Idempotency-Key', triesMax = 8, giveUpAfter = 120_000, tryTimeout = 30_000, pauseFirst = 200, pauseMax = 20_000,
    save, fetch = globalThis.fetch,
  } = options;
  const backOff = (number) => Math.random() * Math.min(pauseMax, pauseFirst * 2 ** (number - 1));

  return async function fetchOnce(url, init = {}) {
    if (!KEYED.has((init.method ?? 'GET').toUpperCase())) return fetch(url, init);
    if (init.body instanceof ReadableStream) throw new TypeError('a stream cannot be sent again; read it first');
    const headers = new Headers(init.headers);
    if (!headers.has(header)) {
      const key = crypto.randomUUID();
      headers.set(header, key);
      await save?.(url, init, key);
    }
    const began = Date.now();
    for (let number = 1; ; number += 1) {
      let answer, failed, pause;
      try {
        const timeout = AbortSignal.timeout(tryTimeout);
        const signal = init.signal ? AbortSignal.any([init.signal, timeout]) : timeout;
        answer = await whole(await fetch(url, { ...init, headers, signal }));
        pause = await pauseFor(answer, () => backOff(number));
      } catch (error) {
        // Aborted by the caller: no try is wanted.
        if (init.signal?.aborted) throw error;
        [failed, pause] = [error, backOff(number)];
      }
      if (pause === undefined) return answer;
      if (number >= triesMax || Date.now() - began + pause > giveUpAfter) {
        if (answer) return answer;
        // It may have run: send the request again with this key.
        throw Object.assign(failed, { idempotencyKey: headers.get(header) });
      }
      await new Promise((resume) => setTimeout(resume, pause));
    }
  };
}

/** An answer that broke off in its body is lost too, so the body is read before the answer counts. */
async function whole(answer) {
  const { status, statusText, headers } = answer;
  const body = await answer.arrayBuffer();
  return new Response([101, 204, 205, 304].includes(status) ? null : body, { status, statusText, headers });
}

/** How long to wait before the next try; undefined where there is none. */
async function pauseFor(answer, backOff) {
  const told = retryAfter(answer.headers.get('retry-after'));
  let again;
  if (answer.headers.get('content-type')?.split(';')[0].trim().toLowerCase() === 'application/problem+json') {
    again = await answer.clone().json().then((problem) => problem?.retryable, () => undefined);
  }
  if (typeof again !== 'boolean') {
    again = AGAIN.has(answer.status) || (AGAIN_IF_TOLD_WHEN.has(answer.status) && told !== undefined);
  }
  return again ? told ?? backOff() : undefined;
}

/** Milliseconds from now: given as seconds, or as a date. */
function retryAfter(text) {
  if (text === null) return undefined;
  if (/^\d+$/.test(text.trim())) return Number(text) * 1000;
  const date = Date.parse(text);
  return Number.isNaN(date) ? undefined : Math.max(0, date - Date.now());
}
