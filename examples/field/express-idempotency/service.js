// express-idempotency as its README sets it up: its middleware before the route, and the question in the handler.
const express = require("express");
const { idempotency, getSharedIdempotencyService } = require("express-idempotency");

const app = express();
let payments = 0;

app.get("/count", (request, response) => response.json({ count: payments }));
app.use((request, response, next) => (request.get("authorization") ? next() : response.sendStatus(401)));
app.use(express.json());
app.post("*", idempotency());
app.post("/payments", async (request, response) => {
  if (getSharedIdempotencyService().isHit(request)) return;
  await new Promise((done) => setTimeout(done, 100));
  payments += 1;
  response.status(201).json({ id: payments, amount: request.body.amount });
});

app.listen(process.env.PORT, "127.0.0.1");
