"use strict";
(() => {
  const status = document.getElementById("status");
  const say = (text) => { status.textContent = text; };

  // Tables: sort by a click on a title, filter by text and by choice.
  for (const box of document.querySelectorAll(".table")) {
    const body = box.querySelector("tbody");
    const rows = [...body.rows];
    const titles = [...box.querySelectorAll("thead th")];
    const search = box.querySelector("input[type=search]");
    const picks = [...box.querySelectorAll("select[data-column]")];
    const count = box.querySelector(".count");

    const key = (row, column) => {
      const cell = row.cells[column];
      const order = cell.dataset.order;
      if (order === undefined) return cell.textContent.trim();
      if (order === "none") return null;
      const number = Number(order);
      return Number.isNaN(number) ? order : number;
    };
    const compare = (a, b) =>
      typeof a === "number" && typeof b === "number"
        ? (a < b ? -1 : a > b ? 1 : 0)
        : String(a).localeCompare(String(b), undefined, { numeric: true });

    titles.forEach((title, column) => {
      title.querySelector("button").addEventListener("click", () => {
        const numeric = title.classList.contains("num");
        const was = title.getAttribute("aria-sort");
        const descending = was ? was === "ascending" : numeric;
        const sign = descending ? -1 : 1;
        titles.forEach((other) => other.removeAttribute("aria-sort"));
        title.setAttribute("aria-sort", descending ? "descending" : "ascending");
        rows.sort((a, b) => {
          const [one, other] = [key(a, column), key(b, column)];
          // Undefined values come last in either order.
          if (one === null || other === null) return (one === null) - (other === null);
          return sign * compare(one, other);
        });
        body.append(...rows);
        say(`Sorted by ${title.textContent.trim()}, ${descending ? "descending" : "ascending"}`);
      });
    });

    const filter = () => {
      const text = search ? search.value.trim().toLowerCase() : "";
      let shown = 0;
      for (const row of rows) {
        const matches =
          (!text || row.textContent.toLowerCase().includes(text)) &&
          picks.every((pick) => !pick.value || row.cells[pick.dataset.column].textContent.trim() === pick.value);
        row.hidden = !matches;
        shown += matches;
      }
      if (count) count.textContent = `${shown} of ${rows.length} rows`;
    };
    if (search) search.addEventListener("input", filter);
    picks.forEach((pick) => pick.addEventListener("change", filter));
    filter();
  }

  // Several plots of one kind: one at a time on screen, all in print.
  for (const choice of document.querySelectorAll(".switch")) {
    const plots = [...choice.parentElement.querySelectorAll(":scope > .switched")];
    const select = choice.querySelector("select");
    const show = () => plots.forEach((plot, n) => { plot.hidden = String(n) !== select.value; });
    select.addEventListener("change", show);
    choice.hidden = false;
    show();
  }
  window.addEventListener("beforeprint", () => {
    document.querySelectorAll("details").forEach((d) => { d.open = true; });
  });

  // Slice viewers: tiled axial slices are unpacked into volumes, any plane is cut from them.
  const palette = document.getElementById("palette");
  const PLANES = [[1, 2], [0, 2], [0, 1]];  // the axes that run right and up in each plane

  const unpack = async (uri, [x, y, z], tiles) => {
    const image = new Image();
    image.src = uri;
    await image.decode();
    const canvas = document.createElement("canvas");
    canvas.width = image.width;
    canvas.height = image.height;
    const context = canvas.getContext("2d", { willReadFrequently: true });
    context.drawImage(image, 0, 0);
    const { data } = context.getImageData(0, 0, image.width, image.height);
    const volume = new Uint8Array(x * y * z);
    for (let k = 0; k < z; k++) {
      const left = (k % tiles) * x;
      const top = Math.floor(k / tiles) * y;
      for (let j = 0; j < y; j++) {
        const from = ((top + j) * image.width + left) * 4;
        const to = (k * y + j) * x;
        for (let i = 0; i < x; i++) volume[to + i] = data[from + 4 * i];
      }
    }
    return volume;
  };

  const start = async (viewer) => {
    const { colors, names, errors } = JSON.parse((viewer.querySelector("script") ?? palette).textContent);
    const shape = viewer.dataset.shape.split(",").map(Number);
    const tiles = Number(viewer.dataset.tiles);
    // Without a truth to compare with, there is none.
    const [gray, prediction, truth] = await Promise.all(["gray", "prediction", "truth"]
      .map((name) => viewer.dataset[name] && unpack(viewer.dataset[name], shape, tiles)));
    const here = viewer.querySelector(".here");
    const strength = viewer.querySelector(".strength");
    const outline = viewer.querySelector(".outline");
    const sliders = [...viewer.querySelectorAll("input[type=range][data-axis]")];
    const canvases = [...viewer.querySelectorAll("canvas")];
    const position = sliders.map((slider) => Number(slider.value));
    const strides = [1, shape[0], shape[0] * shape[1]];

    // Classes that are not compared are background where errors are shown.
    const ignored = new Set((viewer.dataset.notCompared || "").split(",").filter(Boolean).map(Number));
    const compared = (own) => ignored.has(own) ? 0 : own;
    const wrong = (index) => {
      const t = compared(truth[index]);
      const p = compared(prediction[index]);
      return t === p ? null : p === 0 ? errors[0] : t === 0 ? errors[1] : errors[2];
    };
    // A colour, or none: within its own kind where outlines are asked for.
    const color = (labels, index, right, up) => {
      const own = labels[index];
      const inner = outline.checked && [right, -right, up, -up].every((step) => labels[index + step] === own);
      return own && !inner ? colors[own] : null;
    };
    const draw = (axis) => {
      const [right, up] = PLANES[axis];
      const width = shape[right];
      const height = shape[up];
      const canvas = canvases[axis];
      canvas.width = width;
      canvas.height = height;
      canvas.closest(".plane").style.flexGrow = width / height;
      const context = canvas.getContext("2d");
      const picture = context.createImageData(width, height);
      const show = viewer.querySelector("input[type=radio]:checked").value;
      const mix = strength.value / 100;
      for (let v = 0; v < height; v++) {
        for (let u = 0; u < width; u++) {
          const index = position[axis] * strides[axis] + u * strides[right] + v * strides[up];
          const to = ((height - 1 - v) * width + u) * 4;
          const over = show === "scan" ? null : show === "errors" ? wrong(index)
            : color(show === "truth" ? truth : prediction, index, strides[right], strides[up]);
          for (let c = 0; c < 3; c++) {
            picture.data[to + c] = over ? gray[index] * (1 - mix) + over[c] * mix : gray[index];
          }
          picture.data[to + 3] = 255;
        }
      }
      context.putImageData(picture, 0, 0);
      const name = ["Sagittal", "Coronal", "Axial"][axis];
      canvas.setAttribute("aria-label", `${name} slice ${position[axis] + 1} of ${shape[axis]}, ${show}`);
    };
    const drawAll = () => [0, 1, 2].forEach(draw);
    const move = (axis, value) => {
      position[axis] = Math.min(shape[axis] - 1, Math.max(0, value));
      sliders[axis].value = position[axis];
      draw(axis);
    };

    sliders.forEach((slider, axis) => slider.addEventListener("input", () => move(axis, Number(slider.value))));
    viewer.querySelectorAll("input[type=radio]").forEach((r) => r.addEventListener("change", drawAll));
    strength.addEventListener("input", drawAll);
    outline.addEventListener("change", drawAll);
    canvases.forEach((canvas, axis) => {
      const [right, up] = PLANES[axis];
      const at = (event) => {
        const box = canvas.getBoundingClientRect();
        const u = Math.floor((event.clientX - box.left) / box.width * shape[right]);
        const v = shape[up] - 1 - Math.floor((event.clientY - box.top) / box.height * shape[up]);
        return [Math.min(shape[right] - 1, Math.max(0, u)), Math.min(shape[up] - 1, Math.max(0, v))];
      };
      const point = (event) => {
        const [u, v] = at(event);
        const index = position[axis] * strides[axis] + u * strides[right] + v * strides[up];
        const found = names[prediction[index]];
        here.textContent = truth ? `Truth: ${names[truth[index]]}. Prediction: ${found}.` : found;
        if (event.buttons === 1) { move(right, u); move(up, v); }
      };
      canvas.addEventListener("pointermove", point);
      canvas.addEventListener("pointerdown", point);
      canvas.addEventListener("wheel", (event) => {
        if (!event.ctrlKey && document.activeElement === sliders[axis]) {
          event.preventDefault();
          move(axis, position[axis] + Math.sign(event.deltaY));
        }
      }, { passive: false });
    });
    // One scale for all three planes.
    viewer.querySelector(".planes").style.gridTemplateColumns =
      window.innerWidth > 720 ? PLANES.map(([right]) => `${shape[right]}fr`).join(" ") : "";
    const still = viewer.parentElement.querySelector(".still");
    if (still) still.hidden = true;
    viewer.hidden = false;
    drawAll();
  };
  for (const viewer of document.querySelectorAll(".viewer")) {
    // Without the viewer the still picture stays: the case is never lost.
    start(viewer).catch((error) => console.error(`viewer: ${error}`));
  }
})();
