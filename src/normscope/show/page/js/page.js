// The page: the data lies in the file, the state in the address.
mountNormscope(
  document.getElementById("normscope"),
  JSON.parse(document.getElementById("normscope-data").textContent),
  { page: true },
);
