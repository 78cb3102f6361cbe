import { post, say, tokenInAddress } from "./common.js";

const form = document.getElementById("login");

form.addEventListener("submit", async (event) => {
  event.preventDefault();
  const said = await post("/login", Object.fromEntries(new FormData(form)));
  if (said.error) {
    say(form.querySelector(".said"), said.error);
    form.elements.token.select();
  } else {
    location.assign(said.next);
  }
});

if (tokenInAddress) {
  form.elements.token.value = tokenInAddress;
  form.requestSubmit();
}

// A visitor by a link of another site has a session that the browser has not shown yet.
const next = form.elements.next.value;
fetch("/", { method: "HEAD", redirect: "manual" }).then((answer) => {
  if (answer.ok) location.replace(next);
});
