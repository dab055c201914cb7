// A payments service as anyone would write it. It knows nothing of keys or retries.

import { randomUUID } from "node:crypto";
import { setTimeout as sleep } from "node:timers/promises";

import express from "express";

const app = express();
const charges = [];

app.use(express.json());

app.post("/payments", async (request, response) => {
  await sleep(100); // the bank takes its time
  const { amount, currency } = request.body;
  const charge = { id: `pay_${randomUUID()}`, amount, currency };
  charges.push(charge);
  response.status(201).json(charge);
});

app.get("/charges", (request, response) => {
  response.json({ charges: charges.length });
});

app.listen(Number(process.env.PORT ?? 3000), "127.0.0.1");
