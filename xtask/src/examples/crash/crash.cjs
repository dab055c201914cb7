// Loaded before service.js, which is killed by SIGKILL at the step that DIE_AT names. Only the test has this file.

const { ServerResponse } = require("node:http");
const pg = require("pg");

const step = process.env.DIE_AT ?? "";
const after = {
  "INSERT INTO payment": "after the rows",
  onlyonce_send: "after the message",
  onlyonce_complete: "after onlyonce_complete",
  COMMIT: "after COMMIT",
};
const die = () => process.kill(process.pid, "SIGKILL");

const { query } = pg.Client.prototype;
pg.Client.prototype.query = function (text, ...rest) {
  if (text === "BEGIN" && step === "before BEGIN") die();
  const result = query.call(this, text, ...rest);
  if (text === "COMMIT" && step === "COMMIT sent") die();
  const named = Object.keys(after).find((part) => String(text).includes(part));
  return result.then((value) => (named && step === after[named] ? die() : value));
};

const { end } = ServerResponse.prototype;
ServerResponse.prototype.end = function (chunk, ...rest) {
  const dies = step === "in the middle of the answer" && this.req.method === "POST";
  if (!dies) return end.call(this, chunk, ...rest);
  this.write(chunk.subarray(0, 10), die);
};
