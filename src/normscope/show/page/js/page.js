// Start the viewer on a page: the data is in the file, the state in the address.
mountNormscope(
  document.getElementById("normscope"),
  JSON.parse(document.getElementById("normscope-data").textContent),
  { page: true },
);
